// Finds, sorts and shows the groups of samples.html; inspector_cards.js is before it in the page.

const $ = id => document.getElementById(id);
const { title, since, chunks } = JSON.parse($("index").textContent);
// What is known of each group without its texts: step, group, rewards, lengths, disagreements, and where it lies.
const groups = chunks.flatMap((entries, chunk) => entries.map((entry, row) => ({ ...entry, chunk, row })));
$("title").textContent = document.title = title + ": samples" + (since === null ? "" : ` from step ${since} on`);
if (since !== null) $("title").title = "Those of earlier steps are in samples.jsonl: a browser does not open a page of any size.";

const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));

// -- orders and filters

// What each order sorts by, the largest first, from what the index has of a completion.
const ORDERS = {
  apart: one => Math.abs(one.disagreement ?? NaN),
  over: one => one.disagreement ?? NaN,
  under: one => -(one.disagreement ?? NaN),
  long: one => one.length,
  short: one => -one.length,
  most: one => one.reward ?? NaN,
  least: one => -(one.reward ?? NaN),
};
const known = (by, one) => { const x = ORDERS[by](one); return Number.isNaN(x) ? -Infinity : x; };
const completions = entry => entry.lengths.map((length, i) => ({ length, reward: entry.rewards[i], disagreement: entry.disagreements?.[i] }));
// A group counts as the completion of it that comes first. Those that tie, or lack the number, stay in the order of the file.
function sorted(list, by) {
  if (!by) return list;
  const key = entry => completions(entry).reduce((most, one) => Math.max(most, known(by, one)), -Infinity);
  return list.map(entry => [key(entry), entry]).sort((a, b) => (b[0] > a[0]) - (b[0] < a[0])).map(pair => pair[1]);
}
function columns(rows, by) {
  const one = row => ({ length: lengthOf(row), reward: row.reward, disagreement: row.disagreement });
  return rows.map(row => [known(by || "most", one(row)), row]).sort((a, b) => (b[0] > a[0]) - (b[0] < a[0])).map(pair => pair[1]);
}
const differ = entry => new Set(entry.rewards).size > 1;
const ONLY = { "": () => true, differ, after: entry => entry.after, fell: entry => entry.fell, rose: entry => entry.rose, fault: entry => entry.fault };
function matching() {
  const low = $("low").value === "" ? -Infinity : +$("low").value, high = $("high").value === "" ? Infinity : +$("high").value;
  const any = low === -Infinity && high === Infinity;
  return groups.filter(entry => ONLY[$("only").value](entry) && (any || entry.rewards.some(reward => typeof reward === "number" && reward >= low && reward <= high)));
}
const compared = groups.some(entry => entry.disagreements);
$("about").hidden = !compared;
for (const option of $("sort").options) option.disabled = !compared && ["apart", "over", "under"].includes(option.value);

// -- data: each chunk is parsed when one of its groups is shown or searched

let parsed = { chunk: -1 };
async function rowsOf(entry) {
  const { chunk } = entry;
  // a chunk is whole once what follows it is there
  while (!$(`chunk${chunk + 1}`)) {
    if (document.readyState === "complete") throw new Error("the file of this page ends early: write it again");
    await pause(30);
  }
  if (parsed.chunk !== chunk) parsed = { chunk, groups: JSON.parse($(`chunk${chunk}`).textContent) };
  return parsed.groups[entry.row];
}

// -- the page

let found = groups, at = 0, current = [], drawing = 0, searching = 0, samplesShown = MOST_SAMPLES;
const LEGENDS = {
  advantages: [[GREEN, "advantage above 0"], [RED, "below 0"], "the larger, the darker"],
  logprobs: [[BLUE, "unlikely"], "the less likely the policy found the token before the update, the darker"],
  entropies: [[ORANGE, "undecided"], "the less certain the policy was of what to write here, the darker"],
  change: [[GREEN, "more likely after the update"], [RED, "less likely"], "the larger the change, the darker"],
  stands: [["short", "short of its bound"], ["at", "at it"], ["past", "past it"], "no colour: no advantage, or no bound"],
};
function legend(rows, kind) {
  const box = $("legend"), has = !kind || rows.some(row => row[numbersOf(kind)]);
  box.replaceChildren();
  for (const part of LEGENDS[kind] ?? []) {
    if (typeof part === "string") { box.append(part + ". "); continue; }
    const key = make("span", "key " + (part[0] in WORDS ? part[0] : ""), part[1]);
    if (!(part[0] in WORDS)) key.style.background = tint(part[0], 0.7);
    box.append(key, " ");
  }
  if (!has && kind) box.append(make("b", "", missing(rows, kind)));
  if (rows.some(row => row.sampled?.includes(false))) {
    box.append(make("span", "key environment", "environment"), " text that the policy read and was not trained on; it has no colour.");
  }
}
function missing(rows, kind) {
  if (kind === "stands" && rows.some(row => row.logprobs_after)) return "This objective clips no ratio.";
  if (kind === "change" || kind === "stands") return "This step's update was not measured: log.measure_every says how often it is." + (groups.some(entry => entry.after) ? " Filter for groups with probabilities after the update." : "");
  return "These completions were written without it.";
}

function draw(entry, rows) {
  const kind = $("colour").value, main = $("group"), questions = new Set(rows.map(row => row.question ?? "")), answers = new Set(rows.map(row => JSON.stringify(row.answer)));
  current = columns(rows, $("sort").value);
  const prompt = make("div", "prompt"), facts = make("div", "facts"), first = rows[0] ?? {};
  for (const question of questions) prompt.append(make("div", "text", clipped(question, LONGEST)));
  if (answers.size === 1 && first.answer !== undefined) {
    const item = make("span", "", "right answer ");
    item.append(make("b", "", shown(first.answer)));
    facts.append(item);
  }
  const given = entry.rewards.filter(reward => typeof reward === "number");
  const mean = given.reduce((total, reward) => total + reward, 0) / given.length;
  const several = rows.length === 1 ? "1 completion" : `${rows.length} completions`;
  facts.append(make("span", "", given.length ? `${several}, mean reward ${shown(mean)}${rows.length > 1 && !differ(entry) ? ", all the same: nothing to learn from their comparison" : ""}` : several));
  prompt.append(facts);
  let scale = 1e-9;
  for (const row of current) for (const x of row.advantages || []) scale = Math.max(scale, Math.abs(x ?? 0));
  const seen = current.slice(0, samplesShown), most = Math.max(500, Math.floor(MOST_TOKENS / seen.length));
  const list = make("div", seen.some(row => textOf(row).length > 700) ? "list long" : "list");
  list.append(...seen.map((row, n) => card(row, n, kind, scale, most, answers.size > 1)));
  main.replaceChildren(prompt, list);
  if (seen.length < current.length) {
    const button = make("button", "more", `show ${current.length - seen.length} more completions`);
    button.addEventListener("click", () => { samplesShown = Infinity; draw(entry, rows); });
    main.append(button);
  }
  legend(rows, kind);
  choose(null);
}

async function show() {
  const mine = ++drawing, entry = found[at], number = found.length ? at + 1 : 0;
  $("place").max = Math.max(0, found.length - 1);
  $("place").value = at;
  $("back").disabled = at <= 0;
  $("next").disabled = at >= found.length - 1;
  $("count").textContent = `${number} of ${found.length}${found.length < groups.length ? ` (${groups.length} in all)` : ""}`;
  $("where").textContent = entry ? named(entry) : "no group is like that";
  $("step_back").disabled = !entry || otherStep(-1) === at;
  $("step_next").disabled = !entry || otherStep(1) === at;
  if (!entry) return $("group").replaceChildren();
  try {
    const rows = await rowsOf(entry);
    if (mine !== drawing) return;  // another group was asked for meanwhile
    samplesShown = MOST_SAMPLES;
    draw(entry, rows);
  } catch (error) {
    $("group").replaceChildren(make("p", "", error.message));
  }
  write();
}
const named = entry => (entry.step === null ? "" : `step ${entry.step}, `) + `group ${entry.group}`;

function go(place) {
  if (place < 0 || place >= found.length || place === at) return;
  at = place;
  return show();
}
// The first group of the next step, or of the one before, in the order that is shown.
function otherStep(direction) {
  let place = at;
  while (place >= 0 && place < found.length && found[place].step === found[at].step) place += direction;
  if (place < 0 || place >= found.length) return at;
  while (direction < 0 && place > 0 && found[place - 1].step === found[place].step) place--;
  return place;
}

// Filters and sorts again, and stays with the group that is shown if it is still there.
async function refresh() {
  const mine = ++searching, text = $("text").value.toLowerCase(), stay = found[at];
  let list = sorted(matching(), $("sort").value);
  if (text) {
    const by_chunk = new Map(), hits = new Set();
    for (const entry of list) by_chunk.set(entry.chunk, [...(by_chunk.get(entry.chunk) ?? []), entry]);
    let done = 0;
    for (const entries of by_chunk.values()) {
      for (const entry of entries) {
        const rows = await rowsOf(entry);
        if (rows.some(row => ((row.question ?? "") + "\n" + textOf(row)).toLowerCase().includes(text))) hits.add(entry);
      }
      done++;
      if (mine !== searching) return;
      $("count").textContent = `searching: ${Math.round(100 * done / by_chunk.size)}%`;
      await pause(0);
      if (mine !== searching) return;
    }
    list = list.filter(entry => hits.has(entry));
  }
  found = list;
  at = Math.max(0, found.indexOf(stay));
  return show();
}

// -- one token

let chosen = null;
function choose(span) {
  chosen?.classList.remove("chosen");
  chosen = span;
  const box = $("token");
  if (!span) {
    box.hidden = !document.querySelector("main span[data-i]");
    box.textContent = "Tap a token to see its numbers.";
    return;
  }
  span.classList.add("chosen");
  const row = current[span.closest("article").dataset.n], i = +span.dataset.i;
  box.replaceChildren(make("code", "", clipped(JSON.stringify(row.tokens[i]).slice(1, -1), 200)), ` token ${i + 1} of ${row.tokens.length}: `);
  for (const [name, value] of numbers(row, i)) {
    const fact = make("span", "", name + " ");
    fact.append(make("b", "", value));
    box.append(fact, " ");
  }
}
$("group").addEventListener("click", event => { if (event.target.dataset?.i !== undefined) choose(event.target); });
$("group").addEventListener("mouseover", event => {
  const span = event.target;
  if (span.dataset?.i === undefined || span.title) return;
  span.title = numbers(current[span.closest("article").dataset.n], +span.dataset.i).map(pair => pair.join(" ")).join("\n");
});
function neighbour(direction) {
  const spans = [...document.querySelectorAll("main span[data-i]")], place = spans.indexOf(chosen);
  const span = spans[place < 0 ? 0 : Math.min(spans.length - 1, Math.max(0, place + direction))];
  if (span) { choose(span); span.scrollIntoView({ block: "nearest" }); }
}

// -- keyboard, links

const KEYS = {
  j: () => go(at + 1), k: () => go(at - 1), J: () => go(otherStep(1)), K: () => go(otherStep(-1)),
  c: () => { $("colour").selectedIndex = ($("colour").selectedIndex + 1) % $("colour").options.length; return show(); },
  ArrowRight: () => neighbour(1), ArrowLeft: () => neighbour(-1), Escape: () => choose(null),
  "/": event => { event.preventDefault(); $("more").open = true; $("text").focus(); },
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName)) { if (event.key === "Escape") event.target.blur(); return; }
  KEYS[event.key]?.(event);
});
const linked = ["colour", "sort", "only", "low", "high", "text"];
function write() {
  const entry = found[at], parts = new URLSearchParams();
  if (!entry) return;
  if (entry.step !== null) parts.set("step", entry.step);
  parts.set("group", entry.group);
  for (const id of linked) if ($(id).value !== (id === "colour" ? "advantages" : "")) parts.set(id, $(id).value);
  if (location.hash.slice(1) === parts.toString()) return;
  try { history.replaceState(null, "", "#" + parts); } catch { /* a page inside a notebook has no address of its own */ }
}
// Shows what the link names: #step=40&group=3&colour=stands.
async function follow() {
  const parts = new URLSearchParams(location.hash.slice(1));
  for (const id of linked) $(id).value = parts.get(id) ?? (id === "colour" ? "advantages" : "");
  for (const id of ["colour", "sort", "only"]) if ($(id).selectedIndex < 0) $(id).selectedIndex = 0;
  const wanted = groups.find(entry => String(entry.step ?? "") === (parts.get("step") ?? "") && String(entry.group) === parts.get("group"));
  found = groups;
  at = Math.max(0, groups.indexOf(wanted ?? groups.find(entry => String(entry.step) === parts.get("step"))));
  if (linked.slice(1).some(id => parts.has(id))) { $("more").open = true; await refresh(); } else await show();
}
for (const id of ["only", "low", "high", "text", "sort"]) $(id).addEventListener("input", refresh);
$("colour").addEventListener("input", show);
$("place").addEventListener("input", () => go(+$("place").value));
for (const [id, key] of [["back", "k"], ["next", "j"], ["step_back", "K"], ["step_next", "J"]]) $(id).addEventListener("click", KEYS[key]);
window.addEventListener("hashchange", follow);
follow();
