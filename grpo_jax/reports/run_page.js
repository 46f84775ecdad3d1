// Shows the views of run_page.html: curves, results, settings, metrics and samples; run_charts.js is before it in the page.

const $ = id => document.getElementById(id), main = document.querySelector("main");
const { runs, panels, settings, of_objectives, glossary, seconds } = JSON.parse($("data").textContent);
const COLORS = ["#3b6fb6", "#d1793a", "#4f9a5b", "#8a5fb0", "#5b5b5b", "#c0508a", "#9a8a2f"], DASHES = ["", "5 3", "2 3", "8 3 2 3"];
const VIEWS = ["curves", "settings", "samples", "glossary"], UNITS = { step: "step", tokens: "million tokens", hours: "hours" };
const color = n => COLORS[n % COLORS.length], dash = n => DASHES[Math.floor(n / COLORS.length) % DASHES.length];
// The key of line n: two lines of one colour have other dashes.
function mark(n, kind = "i") {
  const key = make(kind, "", { class: "swatch" }), [on, off] = dash(n).split(" ").map(Number);
  key.style.background = dash(n) ? `repeating-linear-gradient(90deg, ${color(n)} 0 ${on}px, transparent ${on}px ${on + off}px)` : color(n);
  return key;
}
$("title").textContent = document.title = runs.map(run => run.name).join(", ");

// -- what is shown, which the address keeps

const state = { view: "curves", x: "step", smooth: "20", log: "", text: "", hidden: "", open: "", run: "0" };
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in state) state[name] = value;
if (!VIEWS.includes(state.view)) state.view = "curves";
if (!(state.x in UNITS)) state.x = "step";
const hidden = new Set(state.hidden.split(",").filter(Boolean).map(Number)), open = new Set(state.open.split(",").filter(Boolean));
function keep() {
  state.hidden = [...hidden].join(",");
  state.open = [...open].join(",");
  const hash = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== "")).toString();
  try { history.replaceState(null, "", "#" + hash); } catch { location.hash = hash; }
}
function change(name, value) { state[name] = value; keep(); show(); }

// -- curves

// One line of a run for a metric, or null; `label` and `n`, of its colour and dashes, tell lines apart.
function lineOf(run, name, label, n) {
  const found = runs[run].metrics[name];
  if (!found || hidden.has(run)) return null;
  const [places, y] = found;
  return { x: places.map(i => runs[run][state.x][i]), y, label, n, color: color(n), dash: dash(n) };
}
function figure(title, lines, share, help) {
  const box = make("figure"), caption = make("figcaption", title);
  if (help) caption.title = help;
  for (const line of lines.length > 1 ? lines : []) {
    const key = make("span", "", { class: "key" });
    key.append(mark(line.n), line.label);
    caption.append(key);
  }
  box.append(caption);
  const how = { smooth: state.smooth / 100, log: state.log === "1", share, unit: UNITS[state.x], whole: state.x === "step" };
  seen.observe(box);
  waiting.set(box, () => draw(box, lines, how));
  return box;
}
// Charts are drawn when they come near the window.
const waiting = new Map();
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); waiting.get(entry.target)?.(); waiting.delete(entry.target); }
}, { rootMargin: "600px" });

// With one run the metrics of a panel share a chart; with several each metric has one, and the runs share it.
function charts(panel) {
  const visible = runs.flatMap((_, n) => hidden.has(n) ? [] : [n]), matches = ([name]) => name.includes(state.text);
  const metrics = panel.metrics.filter(matches).filter(([name]) => visible.some(n => runs[n].metrics[name]));
  if (runs.length === 1) {
    const lines = metrics.map(([name, label], k) => lineOf(0, name, label, k)).filter(Boolean);
    return lines.length ? [figure(panel.title, lines, panel.share, metrics.map(([name]) => name + explained(name)).join("\n"))] : [];
  }
  return metrics.map(([name, label]) => {
    const lines = visible.map(n => lineOf(n, name, runs[n].name, n)).filter(Boolean);
    return figure(panel.metrics.length > 1 ? `${panel.title}: ${label}` : panel.title, lines, panel.share, name + explained(name));
  });
}
function explained(name) {
  const entry = glossary.find(([names]) => names.some(known => known === name || new RegExp("^" + known.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace("NAME", ".+").replace(/@k$/, "@\\d+") + "$").test(name)));
  return entry ? ": " + entry[1] : "";
}
// What can be folded; it stays open when the page is drawn again.
function folded(name, summary, content) {
  const box = make("details");
  box.append(make("summary", summary), content);
  box.open = open.has(name);
  box.ontoggle = () => { box.open ? open.add(name) : open.delete(name); keep(); };
  return box;
}
function warnings() {
  const told = runs.flatMap((run, n) => run.warnings.map(text => [runs.length > 1 ? named(n) : "", text]));
  if (told.length) main.append(folded("warnings", `warnings (${told.length})`, table(["run", "warning"], told)));
}
function curves() {
  results();
  warnings();
  const grid = make("div", "", { class: "grid" });
  for (const panel of panels) grid.append(...charts(panel));
  main.append(grid);
  const drawn = new Set(panels.flatMap(panel => panel.metrics.map(([name]) => name)));
  const others = [...new Set(runs.flatMap(run => Object.keys(run.metrics)))].filter(name => !drawn.has(name) && name.includes(state.text)).sort();
  const rest = make("div", "", { class: "grid" }), more = folded("others", `all other metrics (${others.length})`, rest);
  for (const name of others) rest.append(...charts({ title: name, share: false, metrics: [[name, name]] }));
  if (state.text) [more.open, more.ontoggle] = [true, null];
  if (others.length) main.append(more);
}

// -- tables

function table(heads, rows) {
  const box = make("div", "", { class: "scroll" }), made = make("table"), head = make("tr");
  for (const text of heads) head.append(make("th", text));
  made.append(head);
  for (const cells of rows) {
    const row = make("tr");
    for (const cell of cells) { const td = make("td"); td.append(cell); row.append(td); }
    made.append(row);
  }
  box.append(made);
  return box;
}
function named(n) {
  const box = make("span");
  box.append(mark(n), " " + runs[n].name);
  return box;
}
const last = (run, name) => run.metrics[name]?.[1].at(-1);
const percent = x => x === undefined || x === null ? "" : (100 * x).toFixed(1) + "%";
function results() {
  const facts = {
    "steps": run => whole(run.step.at(-1) ?? 0),
    "hours": run => short(run.result?.wall_s ? run.result.wall_s / 3600 : run.hours.at(-1) ?? 0),
    "million tokens": run => short(run.tokens.at(-1) ?? 0),
    "reward of the last step": run => last(run, "reward/mean") === undefined ? "" : short(last(run, "reward/mean")),
    // a result has none where other problems were tested at the end
    "accuracy before": run => percent(run.result ? run.result.accuracy_before : run.metrics["eval/accuracy"]?.[1][0]),
    "accuracy last": run => percent(run.result?.accuracy_after ?? (run.metrics["eval/accuracy"]?.[1].length > 1 ? last(run, "eval/accuracy") : null)),
    "test problems, at most": run => last(run, "eval/accuracy") === undefined ? "" : String(run.config["eval.problems"] ?? ""),
    "state": run => run.result ? "finished" : "not finished",
  };
  const names = Object.keys(facts).filter(name => runs.some(run => facts[name](run) !== ""));
  const shown = table(["run", ...names], runs.map((run, n) => [named(n), ...names.map(name => facts[name](run))]));
  shown.classList.add("facts");
  main.append(shown, make("p", ""));
}
const written = value => value === undefined ? "" : JSON.stringify(value);
// A run that is older than a setting has its default.
const valueOf = (run, name) => written(run.config[name] ?? settings[name]?.default);
const meaning = name => settings[name]?.meaning ?? of_objectives[name] ?? "";
function setting(name) {
  const code = make("code", name);
  if (meaning(name)) code.title = meaning(name);
  return code;
}
function settingsView() {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.config)))];
  const rows = chosen => chosen.map(name => [setting(name), ...runs.map(run => valueOf(run, name)), meaning(name)]);
  const heads = ["setting", ...runs.map(run => run.name), "meaning"];
  const differs = name => new Set(runs.map(run => valueOf(run, name))).size > 1;
  const changed = name => settings[name] && runs.some(run => valueOf(run, name) !== written(settings[name].default));
  if (runs.length > 1) {
    main.append(make("h2", "What differs between the runs"));
    main.append(names.some(differs) ? table(heads, rows(names.filter(differs))) : make("p", "Nothing.", { class: "soft" }));
  }
  main.append(make("h2", "What is not the default"), table(heads, rows(names.filter(changed))));
  main.append(folded("settings", `all settings (${names.length})`, table(heads, rows(names))));
}
function glossaryView() {
  const list = make("dl"), has = new Set(runs.flatMap(run => Object.keys(run.metrics)));
  for (const [names, meaning] of glossary) {
    const term = make("dt");
    names.forEach((name, i) => { if (i) term.append(", "); term.append(make("code", name)); });
    list.append(term, make("dd", meaning));
  }
  main.append(make("h2", "What the metrics mean"));
  main.append(glossary.length ? list : make("p", `docs/metrics.md explains the ${has.size} metrics.`, { class: "soft" }));
}
function samplesView() {
  const n = Math.min(+state.run || 0, runs.length - 1), text = JSON.parse($(`samples${n}`).textContent);
  if (runs.length > 1) {
    const bar = make("nav");
    runs.forEach((run, i) => {
      const button = make("button", run.name, i === n ? { class: "chosen" } : {});
      button.onclick = () => change("run", String(i));
      bar.append(button);
    });
    main.append(bar, make("p", ""));
  }
  if (!text) { main.append(make("p", "This run has written no samples: log.samples is 0, or it learned from data that it did not sample.", { class: "soft" })); return; }
  const frame = $(`frame${n}`) ?? make("iframe", undefined, { title: "samples", id: `frame${n}` });
  frame.hidden = false;
  if (frame.isConnected) return;  // where it was: a frame that is moved begins anew
  frame.srcdoc = text;
  $("frames").append(frame);
}

// -- the page

const SHOW = { curves, settings: settingsView, samples: samplesView, glossary: glossaryView };
function show() {
  waiting.clear();
  seen.disconnect();
  main.replaceChildren();
  for (const frame of $("frames").children) frame.hidden = true;
  for (const name of ["controls", "runs"]) $(name).style.display = state.view === "curves" ? "" : "none";
  for (const button of $("views").children) button.className = button.textContent === state.view ? "chosen" : "";
  SHOW[state.view]();
}
for (const view of VIEWS) {
  const button = make("button", view);
  button.onclick = () => change("view", view);
  $("views").append(button);
}
if (runs.length > 1) runs.forEach((run, n) => {
  const label = make("label"), box = make("input", undefined, { type: "checkbox" });
  box.checked = !hidden.has(n);
  box.onchange = () => { box.checked ? hidden.delete(n) : hidden.add(n); keep(); show(); };
  label.append(box, mark(n, "span"), run.name);
  $("runs").append(label);
});
$("x").value = state.x; $("smooth").value = state.smooth; $("log").checked = state.log === "1"; $("text").value = state.text;
$("x").onchange = () => change("x", $("x").value);
$("smooth").oninput = () => change("smooth", $("smooth").value);
$("log").onchange = () => change("log", $("log").checked ? "1" : "");
$("text").oninput = () => change("text", $("text").value);
let resized, width = innerWidth;
addEventListener("resize", () => {
  if (state.view !== "curves" || innerWidth === width) return;  // the bars of a phone change only the height
  width = innerWidth;
  clearTimeout(resized);
  resized = setTimeout(show, 200);
});
// A page that is written again and again reads itself again, where it was; not while somebody reads samples.
if (seconds) setInterval(() => { if (state.view !== "samples") location.reload(); }, 1000 * seconds);
addEventListener("DOMContentLoaded", show);
