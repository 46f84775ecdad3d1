// Draws a completion of samples.html: its card, its tokens, and the turns of an episode.

const make = (tag, className, text) => Object.assign(document.createElement(tag), { className, textContent: text ?? "" });
const shown = x => x === null || x === undefined ? "nan" : typeof x === "number" ? +x.toPrecision(4) + "" : clipped(typeof x === "object" ? JSON.stringify(x) : String(x), 2000);
const signed = x => (x > 0 ? "+" : "") + shown(x);
const sign = x => x > 0 ? "good" : x < 0 ? "bad" : "";
const clipped = (text, most) => text.length <= most ? text : `${text.slice(0, most)} ... (${text.length - most} more characters)`;
// A browser that lays out megabytes of text or 100,000 tokens does nothing else.
const LONGEST = 100000, MOST_TOKENS = 40000, MOST_SAMPLES = 64;
const FIELDS = ["step", "group", "sample", "question", "completion", "answer", "reward", "advantage", "tokens", "advantages", "logprobs",
  "entropies", "logprobs_after", "ratios", "bounds", "stands", "logprob_before", "logprob_after", "rewards", "sampled", "turn_rewards", "teacher_prompt"];
const lengthOf = row => (row.tokens ?? textOf(row)).length;
const textOf = row => row.completion ?? "";

// -- tokens

const probability = logprob => Math.exp(Math.min(logprob, 0));
const change = (row, i) => typeof row.logprobs?.[i] === "number" && typeof row.logprobs_after?.[i] === "number" ? row.logprobs_after[i] - row.logprobs[i] : null;
const numbersOf = kind => kind === "change" ? "logprobs_after" : kind;
const isRead = (row, i) => row.sampled?.[i] === false;
const tint = (rgb, share) => `rgba(${rgb}, ${+(Math.min(1, share) * 0.55).toFixed(3)})`;
const GREEN = "47, 125, 74", RED = "179, 64, 47", BLUE = "59, 111, 182", ORANGE = "214, 122, 26";
// Green is up and red is down, by size; less likely is darker blue, less certain is darker orange.
function wash(kind, row, i, scale) {
  const x = kind === "change" ? change(row, i) : row[kind]?.[i];
  if (typeof x !== "number") return "";
  if (kind === "logprobs") return tint(BLUE, -x / 4);
  if (kind === "entropies") return tint(ORANGE, x / 2);
  return x ? tint(x > 0 ? GREEN : RED, Math.abs(x) / (kind === "change" ? 0.5 : scale)) : "";
}

// Whether the ratio is that of the whole completion, as GSPO's: all tokens have one, which is not that of each. Both are rounded.
function isWhole(row) {
  const places = row.ratios.flatMap((ratio, i) => typeof ratio === "number" && change(row, i) !== null ? [i] : []);
  return new Set(places.map(i => row.ratios[i])).size === 1 && places.some(i => Math.abs(Math.exp(change(row, i)) / row.ratios[i] - 1) > 0.001);
}
const WORDS = { short: "short of it", at: "at it", past: "past it" };
// What is known of a token, as [name, value] in plain words.
function numbers(row, i) {
  const facts = [], has = name => typeof row[name]?.[i] === "number";
  if (isRead(row, i)) return [["", "written by the environment: the policy read it and was not trained on it"]];
  if (has("logprobs") && has("logprobs_after")) {
    facts.push(["probability", `${shown(probability(row.logprobs[i]))} before the update, ${shown(probability(row.logprobs_after[i]))} after it`]);
    facts.push(["log-prob", `${shown(row.logprobs[i])} before, ${shown(row.logprobs_after[i])} after`]);
  } else if (has("logprobs")) facts.push(["probability before the update", `${shown(probability(row.logprobs[i]))} (log-prob ${shown(row.logprobs[i])})`]);
  if (has("ratios")) {
    const bound = has("bounds"), single = !isWhole(row);
    const least = bound && single && has("logprobs") ? probability(row.logprobs[i]) * row.bounds[i] : 0;
    const target = !least ? "" : least > 1 ? ", more than a probability of 1" : `, a probability of ${shown(least)}`;
    facts.push([single ? "ratio after / before" : "ratio of the whole completion after / before", shown(row.ratios[i])]);
    facts.push(["clip bound", bound ? `${shown(row.bounds[i])}${target}: the ratio is ${WORDS[row.stands?.[i]] ?? "not compared with it"}` : "none"]);
  }
  if (has("advantages")) facts.push(["advantage", signed(row.advantages[i])]);
  if (has("entropies")) facts.push(["entropy before the update", `${shown(row.entropies[i])} nats`]);
  return facts;
}

// The tokens from `first` to before `last`, each in a span of its own.
function coloured(row, kind, scale, first, last) {
  return row.tokens.slice(first, last).map((token, n) => {
    const i = first + n, stand = kind === "stands" ? row.stands?.[i] : "";
    const span = make("span", stand in WORDS ? stand : "", token);
    if (kind !== "stands") span.style.background = wash(kind, row, i, scale);
    span.dataset.i = i;
    return span;
  });
}

// -- a completion

const isEpisode = row => Boolean(row.sampled && row.tokens);
// The turns of an episode and what the environment wrote between them, of the first `count` tokens.
function turnsOf(row, count) {
  const turns = [];
  for (let i = 0; i < count; i++) {
    if (!i || isRead(row, i) !== isRead(row, i - 1)) turns.push({ first: i, last: i, read: isRead(row, i), rewards: [] });
    turns.at(-1).last = i + 1;
  }
  for (const [i, reward] of row.turn_rewards ?? []) turns.find(turn => turn.first <= i && i < turn.last)?.rewards.push(reward);
  return turns;
}

function conversation(row, kind, scale, count) {
  const box = make("div", "turns");
  for (const { first, last, read, rewards } of turnsOf(row, count)) {
    const who = read ? "environment" : "policy", turn = make("div", `turn ${who}`);
    const plain = read || !kind || !row[numbersOf(kind)];
    // a chat template begins with the end of the line before, which would be an empty line here
    const text = row.tokens.slice(first, last).join("").replace(read ? /^\n/ : "", "");
    const pre = make("pre", "", plain ? text : "");
    if (!plain) pre.append(...coloured(row, kind, scale, first, last));
    turn.append(make("span", "who", who));
    const sum = rewards.reduce((total, reward) => total + reward, 0);
    if (rewards.length) turn.append(make("b", `worth ${sign(sum)}`.trim(), "reward " + rewards.map(shown).join(", ")));
    turn.append(pre);
    box.append(turn);
  }
  return box;
}

function completion(row, kind, scale, most) {
  const episode = isEpisode(row), plain = !kind || !row.tokens || !row[numbersOf(kind)];
  if (plain && !episode) return [make("pre", "", clipped(textOf(row), LONGEST))];
  let count = 0, characters = 0;
  while (count < row.tokens.length && count < most && characters <= LONGEST) characters += row.tokens[count++].length;
  const text = episode ? conversation(row, kind, scale, count) : make("pre", "");
  if (!episode) text.append(...coloured(row, kind, scale, 0, count));
  const left = row.tokens.length - count;
  if (!left) return [text];
  const button = make("button", "more", `show ${left} more tokens`);
  button.addEventListener("click", () => button.parentNode.replaceChildren(...completion(row, kind, scale, count + MOST_TOKENS)));
  return [text, button];
}

function card(row, n, kind, scale, most, answers) {
  const article = make("article", sign(row.advantage)), head = make("div", "head"), facts = make("div", "facts"), body = make("div", "body");
  const fact = (name, value, className) => {
    const item = make("span", className || "", name + " ");
    item.append(make("b", "", shown(value)));
    facts.append(item);
  };
  head.append(make("span", "reward", row.reward === undefined ? "" : `reward ${shown(row.reward)}`));
  if (row.advantage !== undefined) head.append(make("b", sign(row.advantage), `advantage ${row.advantage === null ? "nan" : signed(+row.advantage.toPrecision(3))}`));
  if (typeof row.sample === "number") fact("completion", row.sample);
  if (row.tokens) fact("tokens", row.tokens.length);
  if (isEpisode(row)) {
    fact("turns", turnsOf(row, row.tokens.length).filter(turn => !turn.read).length);
    fact("only read", row.tokens.filter((_, i) => isRead(row, i)).length);
  }
  if (answers && row.answer !== undefined) fact("right answer", row.answer);
  for (const [name, value] of Object.entries(row)) if (!FIELDS.includes(name)) fact(name, value, name === "faults" ? "bad" : "");
  const parts = Object.entries(row.rewards || {});
  if (parts.length > 1 || parts.some(([, value]) => value !== row.reward)) for (const [name, value] of parts) fact(`reward "${clipped(name, 100)}"`, value);
  if (row.logprob_before !== undefined && row.logprob_after !== undefined) {
    const item = make("span", sign(row.logprob_after - row.logprob_before), "log-prob of all tokens ");
    item.append(make("b", "", `${shown(row.logprob_before)} before the update, ${shown(row.logprob_after)} after`));
    facts.append(item);
  }
  body.append(...completion(row, kind, scale, most));
  if (row.teacher_prompt !== undefined) {
    const asked = document.createElement("details");
    asked.append(make("summary", "", row.teacher_prompt === null ? "it has no teacher" : "what the teacher was asked"), make("pre", "", clipped(row.teacher_prompt ?? "", LONGEST)));
    body.append(asked);
  }
  article.append(head, facts, body);
  article.dataset.n = n;
  return article;
}
