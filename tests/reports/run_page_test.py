"""report.html: what it holds of a run, and what it shows in a browser."""

import json

import browser
import pytest

from grpo_jax.io import storage
from grpo_jax.reports import run_page
from reports.inspector_page_test import GROUP, HOSTILE

LINES = [
  {"step": 0, "eval/accuracy": 0.25, "time/eval": 36.0},
  {"step": 1, "reward/mean": 0.5, "tokens": 1e6, "time/sample": 36.0, "time/score_share": 0.5},
  {"step": 2, "reward/mean": 0.7, "tokens": 2e6, "time/sample": 72.0, "clip_low": 0.0, "odd": 3.0},
]


def folder(tmp_path, name="run", lines=LINES, config=None, samples=(), told=""):
  """Makes the folder of a run."""
  made = tmp_path / name
  made.mkdir(parents=True)
  (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  (made / "config.json").write_text(json.dumps(config or {"steps": 5, "learner": {"lr": 1e-3}}))
  if samples:
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    (made / "samples.jsonl").write_text(text)
  if told:
    (made / "warnings.txt").write_text(told)
  return made


def page(*folders):
  out = folders[0] / run_page.NAME
  return run_page.write([str(each) for each in folders], str(out)).read_text()


def test_metrics_are_columns_over_steps_tokens_and_hours():
  found = run_page.curves(LINES)
  assert found["step"] == [0, 1, 2] and found["tokens"] == [0, 1, 3]
  assert found["hours"] == [0.01, 0.02, 0.04]  # a share is no time
  assert found["metrics"]["reward/mean"] == ([1, 2], [0.5, 0.7])
  assert found["metrics"]["eval/accuracy"] == ([0], [0.25])
  assert found["flat"] == ["clip_low"]


def test_tokens_of_a_line_stand_for_the_steps_since_the_line_before():
  lines = [
    {"step": 1, "tokens": 1e6},
    {"step": 11, "tokens": 2e6},
    {"step": 11, "eval/accuracy": 1},
  ]
  assert run_page.curves(lines)["tokens"] == [1, 21, 21]


def test_compilation_is_in_the_other_phases():
  line = {"step": 1, "time/sample": 36.0, "time/compile": 35.0, "time/first_step": 40.0}
  assert run_page.curves([line])["hours"] == [0.01]


def test_a_run_that_goes_on_to_more_steps_has_not_ended(tmp_path):
  made = folder(tmp_path, config={"steps": 5})
  place = storage.place(str(made))
  assert run_page.end_of(place) is None
  (made / "result.json").write_text('{"steps": 5, "accuracy_after": 0.5}')
  assert run_page.end_of(place)["accuracy_after"] == 0.5
  (made / "config.json").write_text('{"steps": 6}')
  assert run_page.end_of(place) is None and run_page.read(place)["result"] is None


def test_a_long_run_is_drawn_by_means_of_neighbours(monkeypatch):
  monkeypatch.setattr(run_page, "POINTS", 3)
  lines = [{"step": i, "a": float(i), "b": 1.0 if i == 4 else None} for i in range(7)]
  found = run_page.curves(lines)
  assert found["step"] == [2, 5, 6]
  assert found["metrics"] == {"a": ([0, 1, 2], [1.0, 4.0, 6.0]), "b": ([1], [1.0])}


def test_panels_hold_what_some_run_has():
  runs = [run_page.curves(lines) for lines in (LINES, [{"step": 1, "eval/pass@8": 0.5}])]
  assert [(panel["title"], len(panel["metrics"])) for panel in run_page.grouped(runs)] == [
    ("accuracy on the test split", 2),
    ("reward", 1),
  ]


@pytest.mark.parametrize(
  ("folders", "names"),
  [
    (["runs/a", "other/b"], ["a", "b"]),
    (["runs/a", "runs/b", "other/a"], ["runs/a", "b", "other/a"]),
    # the runs of a comparison, of two arms and seeds
    (
      [f"all/{arm}/0.001/{seed}" for arm in ("grpo", "ppo") for seed in (0, 1)],
      [f"{arm}/0.001/{seed}" for arm in ("grpo", "ppo") for seed in (0, 1)],
    ),
    (["gs://bucket/one/a", "gs://bucket/two/a"], ["one/a", "two/a"]),
    (["runs/a", "runs/b", "runs/a"], ["a (1)", "b (2)", "a (3)"]),
  ],
)
def test_runs_of_one_name_are_told_apart(folders, names):
  assert run_page.names_apart(folders) == names


def test_what_an_objectives_settings_mean_is_that_of_the_run():
  assert "objective.tau_positive" not in run_page.of_objectives(["grpo", "mine.py"])
  both = run_page.of_objectives(["sapo", "mine.py"])
  assert both["objective.tau_positive"] == "how fast the gate closes where A > 0"
  assert both["objective.keep_high"].startswith("the largest value that is kept")
  of = {name: run_page.of_objectives([name])["objective.clip_high"] for name in ("grpo", "gmpo")}
  assert of["gmpo"].startswith("log rho is bounded") and of["grpo"].startswith("the ratio is")


def test_the_glossary_is_that_of_the_documentation(tmp_path):
  found = run_page.glossary_of(run_page.GLOSSARY)
  assert "truncated" in {name for names, _ in found for name in names}
  assert all(names and meaning and "](" not in meaning for names, meaning in found)
  assert "stands" not in {name for names, _ in found for name in names}  # of samples.jsonl
  assert run_page.glossary_of(tmp_path / "none.md") == []


def test_the_samples_of_all_runs_of_a_page_share_its_size(tmp_path, monkeypatch):
  rows = [GROUP[0] | {"step": step, "question": f"q{step}?"} for step in range(8)]
  runs = [folder(tmp_path, name, samples=rows) for name in ("one", "two")]
  monkeypatch.setattr(run_page, "SAMPLES", 4 * len(json.dumps(rows[0])) + 10)
  # the first step of those that are read may have begun earlier
  assert [page(runs[0]).count(f"q{step}?") for step in (4, 5, 7)] == [0, 1, 1]
  assert [page(*runs).count(f"q{step}?") for step in (6, 7)] == [0, 2]


def test_a_run_writes_its_own_page_once_it_has_metrics(tmp_path):
  made = folder(tmp_path)
  assert run_page.write_own(str(made)) == made / "report.html"
  (made / "metrics.jsonl").unlink()
  assert run_page.write_own(str(made)) is None


def test_no_text_of_a_run_becomes_markup(tmp_path):
  made = folder(
    tmp_path, config={"data": {"template": HOSTILE}}, samples=[GROUP[0] | {"question": HOSTILE}]
  )
  (made / "warnings.txt").write_text(HOSTILE)
  text = page(made)
  assert "<img" not in text and "alert(1)</script>" not in text


@browser.needed
def test_a_run_is_drawn_and_read_point_by_point(tmp_path):
  text = page(folder(tmp_path, told="2026-01-01 10:00 it is slow\n"))
  found = browser.ask(
    text,
    """
    for (const draw of waiting.values()) draw();
    const figures = [...document.querySelectorAll("figure")], reward = figures.find(f => f.textContent.startsWith("reward"));
    const svg = reward.querySelector("svg"), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right - 20, clientY: box.top + 20 }));
    return { titles: figures.map(f => f.querySelector("figcaption").firstChild.textContent), tip: reward.querySelector(".tip").textContent,
             cells: [...document.querySelectorAll("table")[0].querySelectorAll("td")].map(td => td.textContent),
             warned: document.querySelectorAll("table")[1].textContent };
    """,
    tmp_path,
    "smooth=0",
  )
  assert found["titles"][:2] == ["accuracy on the test split", "reward"]
  assert {"clip_low", "odd", "tokens"} <= set(found["titles"])
  assert found["tip"] == "step 2mean: 0.7"
  assert found["cells"][1:] == ["2", "0.04", "3", "0.7", "25.0%", "not finished"]
  assert "it is slow" in found["warned"]
  (tmp_path / "run" / "result.json").write_text('{"wall_s": 360.0, "steps": 5}')
  hours = "return document.querySelectorAll('table')[0].querySelectorAll('td')[2].textContent;"
  # with its start and what came after the last step
  assert browser.ask(page(tmp_path / "run"), hours, tmp_path) == "0.1"


@browser.needed
def test_several_runs_lie_over_one_another_and_can_be_hidden(tmp_path):
  other = [line | {"reward/mean": 0.1} for line in LINES[1:]]
  text = page(
    folder(tmp_path, "one"),
    folder(tmp_path, "two", other, {"steps": 5, "learner": {"lr": 1e-2}}, GROUP),
  )
  count = """
    for (const draw of waiting.values()) draw();
    const reward = [...document.querySelectorAll("figure")].find(f => f.textContent.startsWith("reward"));
    return [reward.querySelectorAll("path").length, [...reward.querySelectorAll(".key")].map(k => k.textContent)];
  """
  assert browser.ask(text, count, tmp_path, "smooth=0") == [2, ["one", "two"]]
  assert browser.ask(text, count, tmp_path, "smooth=0&hidden=1") == [1, []]
  differs = """
    const heads = [...document.querySelectorAll("h2")].map(h => h.textContent);
    return [heads, [...document.querySelectorAll("table")[0].querySelectorAll("td")].slice(0, 3).map(td => td.textContent)];
  """
  assert browser.ask(text, differs, tmp_path, "view=settings") == [
    ["What differs between the runs", "What is not the default"],
    ["learner.lr", "0.001", "0.01"],
  ]
  samples = "return document.querySelector('iframe')?.srcdoc.length ?? document.querySelector('main').textContent;"
  assert browser.ask(text, samples, tmp_path, "view=samples&run=1") > 10_000
  assert "has written no samples" in browser.ask(text, samples, tmp_path, "view=samples")
  glossary = "return document.querySelector('main').textContent;"
  assert "tokens of a completion that the policy sampled" in browser.ask(
    text, glossary, tmp_path, "view=glossary"
  )


@browser.needed
def test_a_run_with_few_values_is_smoothed_over_as_many_steps(tmp_path):
  """Draws ten evaluations that rise from 0 to 0.9 beside 190, and not as their mean."""
  runs = [[{"step": n, "eval/accuracy": n / 200} for n in range(0, 200, k)] for k in (1, 20)]
  text = page(*(folder(tmp_path, f"of_{len(lines)}", lines) for lines in runs))
  rise = """
    const lines = [0, 1].map(n => lineOf(n, "eval/accuracy", "", n)), [x0, x1] = range(lines.flatMap(line => line.x), 0);
    return lines.map(({ x, y }) => { const a = averages(y, windowOf(x, x1 - x0, 0.2)); return a.at(-1) - a[0]; });
  """
  long, short = browser.ask(text, rise, tmp_path)
  assert long > 0.9 and short > 0.8


@browser.needed
def test_a_logarithmic_chart_leaves_out_what_is_not_above_zero(tmp_path):
  lines = [{"step": n, "kl": x, "loss": -1.0} for n, x in enumerate((0.0, 0.001, 0.1))]
  drawn = """
    for (const draw of waiting.values()) draw();
    const of = name => [...document.querySelectorAll("figure")].find(f => f.textContent.startsWith(name)).querySelector("svg");
    return [...["KL", "loss"].map(name => of(name).querySelectorAll("circle").length), of("KL").textContent];
  """
  kl, loss, ticks = browser.ask(
    page(folder(tmp_path, lines=lines)), drawn, tmp_path, "smooth=0&log=1"
  )
  assert (kl, loss) == (2, 3) and "0.01" in ticks


@browser.needed
def test_what_is_open_stays_open_and_samples_stay_where_they_are(tmp_path):
  text = page(folder(tmp_path, samples=GROUP))
  stays = """
    const pause = () => new Promise(done => setTimeout(done, 500));
    document.querySelector("details").open = true;
    await pause();
    change("smooth", "50");
    const opened = document.querySelector("details").open, kept = location.hash.includes("open=others");
    change("view", "samples");
    await pause();
    const frame = document.querySelector("iframe"), inside = frame.contentWindow;
    change("view", "settings");
    const hidden = getComputedStyle(frame).display;
    change("view", "samples");
    return [opened, kept, hidden, frame === document.querySelector("iframe") && frame.contentWindow === inside, frame.hidden];
  """
  assert browser.ask(text, stays, tmp_path) == [True, True, "none", True, False]


@browser.needed
def test_no_two_of_many_runs_look_alike(tmp_path):
  text = page(*(folder(tmp_path, f"run{n}") for n in range(8)))
  looks = "return runs.map((_, n) => [color(n) + dash(n), mark(n).style.background]);"
  lines, keys = zip(*browser.ask(text, looks, tmp_path))
  assert len(set(lines)) == len(set(keys)) == 8


@browser.needed
def test_a_result_without_an_accuracy_before_has_none(tmp_path):
  """Has none where other problems were tested at the end than at the start."""
  made = folder(tmp_path)
  (made / "result.json").write_text('{"steps": 5, "accuracy_after": 0.5}')
  table = "return document.querySelector('table').textContent;"
  told = browser.ask(page(made), table, tmp_path)
  assert "accuracy last" in told and "50.0%" in told and "accuracy before" not in told


@browser.needed
def test_runs_of_any_length_are_smoothed_alike(tmp_path):
  """Each has a smoothed line and a faint one of its values: 8 of them are smoothed as 40 are."""
  runs = [[{"step": n, "reward/mean": n % 2} for n in range(steps)] for steps in (40, 8)]
  text = page(*(folder(tmp_path, f"of_{len(lines)}", lines) for lines in runs))
  count = """
    for (const draw of waiting.values()) draw();
    return [...document.querySelectorAll("figure")].find(f => f.textContent.startsWith("reward")).querySelectorAll("path").length;
  """
  assert browser.ask(text, count, tmp_path, "smooth=40") == 4


@browser.needed
@pytest.mark.parametrize(
  "script, want",
  [
    ("averages([0, 3, 6, 9], 3)", [1.5, 3, 6, 7.5]),
    ("averages([1e18, 2, 4, 6], 3).slice(2)", [4, 5]),
    ("ticks(0, 1, 4)", [0, 0.5, 1]),
    ("ticks(-0.02, 1.02, 5)", [0, 0.5, 1]),
    ("[0, 1.6, 2.4, 9].map(x => nearest([0, 1, 2, 3], x))", [0, 2, 2, 3]),
    ("[0, 1234567, 0.00001234, 0.12345].map(short)", ["0", "1.23e6", "1.23e-5", "0.1235"]),
    ("[25575, 123456].map(whole)", ["25575", "123456"]),
    ("range([2, 2], 0)", [1.8, 2.2]),
  ],
)
def test_the_arithmetic_of_charts(script, want, tmp_path):
  found = browser.ask(page(folder(tmp_path)), f"return {script};", tmp_path)
  assert found == (want if isinstance(want[0], str) else pytest.approx(want))
