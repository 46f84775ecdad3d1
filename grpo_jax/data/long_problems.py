"""Word problems of five to eight steps of the data set `arithmetic`.

The default of `data.arithmetic.max_steps`, 4, leaves them out, so that the stream of the shorter
ones does not depend on them. The order of everything here is part of the data set. They use only
words of the shorter ones, so that a tokenizer made from those spells none of them letter by letter.
"""

from grpo_jax.data.word_problems import problem

PROBLEMS = (
  problem(
    "savings",
    "{A} has ${a}. {He} gets ${n} each day for {m} days, spends half of the dollars, gives ${b} "
    "to {B} and then gets ${c} more. How many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: a + x",
    "{A} has: y / 2",
    "{A} has: z - b",
    "{A} has: w + c",
  ),
  problem(
    "savings",
    "{A} gets ${n} each day for {m} days and {B} gets ${k} each day for {j} days. {A} spends ${a} "
    "and {B} spends ${b}. How many dollars do they have in all?",
    "{A} gets: n * m",
    "{B} gets: k * j",
    "{A} has: x - a",
    "{B} has: y - b",
    "They have: z + w",
  ),
  problem(
    "market",
    "{A} has ${a} and finds ${b} more. {He} buys {n} {items} for ${m} each and a {box} for ${c} "
    "and then spends half of the rest. How many dollars does {A} have left?",
    "{A} has: a + b",
    "{items} cost: n * m",
    "{A} has: x - y",
    "{A} has: z - c",
    "{A} has: w / 2",
  ),
  problem(
    "market",
    "{A} has {a} {items} and finds {c} more. {B} has {b} {items} and loses {d} of them. {A} gets "
    "all of them, loses {e} and shares the rest equally among {n} friends. How many {items} does "
    "each friend get?",
    "{A} has: a + c",
    "{B} has: b - d",
    "{A} has: x + y",
    "{A} has: z - e",
    "Each friend gets: w / n",
  ),
  problem(
    "harvest",
    "{A} has {n} {boxes} with {m} {items} in each {box}. {He} finds {a} more {items}, gives {b} "
    "{items} to {B}, loses half of the rest, finds {c} more and shares all of them equally among "
    "{k} friends. How many {items} does each friend get?",
    "{A} has: n * m",
    "{A} has: x + a",
    "{A} has: y - b",
    "{A} has: z / 2",
    "{A} has: w + c",
    "Each friend gets: v / k",
  ),
  problem(
    "harvest",
    "{A} has {a} {items}. {B} has {b} more {items} than {A}. {C} has half as many {items} as {B}. "
    "{A} gets all of them, loses {c} and shares the rest equally among {n} friends. How many "
    "{items} does each friend get?",
    "{B} has: a + b",
    "{C} has: x / 2",
    "They have: a + x",
    "They have: z + y",
    "{A} has: w - c",
    "Each friend gets: v / n",
  ),
  problem(
    "stops",
    "There are {a} people on a bus. {b} people get off and {c} people get on, half of the people "
    "get off and {d} people get on, and then half of the people get off and {e} people get on. "
    "How many people are on the bus now?",
    "There are: a - b",
    "There are: x + c",
    "There are: y / 2",
    "There are: z + d",
    "There are: w / 2",
    "There are: v + e",
  ),
  problem(
    "stops",
    "{A} has ${a} and {B} has ${b}. {A} buys {n} {items} for ${m} each and {B} buys {k} {items} "
    "for ${j} each. {B} gives the rest to {A} and {A} spends ${c}. How many dollars does {A} have "
    "now?",
    "{A} pays: n * m",
    "{B} pays: k * j",
    "{A} has: a - x",
    "{B} has: b - y",
    "{A} has: z + w",
    "{A} has: v - c",
  ),
  problem(
    "two_friends",
    "{A} has {n} {boxes} with {m} {items} in each {box} and {B} has {k} {boxes} with {j} {items} "
    "in each {box}. {A} loses {a} {items} and {B} finds {b} more. {A} gets all of them, loses "
    "half of them and gives {c} to {C}. How many {items} does {A} have left?",
    "{A} has: n * m",
    "{B} has: k * j",
    "{A} has: x - a",
    "{B} has: y + b",
    "{A} has: z + w",
    "{A} has: v / 2",
    "{A} has: u - c",
  ),
  problem(
    "two_friends",
    "{A} has {a} {items}. {He} finds {n} {items} each day for {m} days, loses {b} of them and "
    "gives half of the rest to {B}. {B} has {c} {items} and gets them, gives {d} to {C} and puts "
    "the rest equally into {k} {boxes}. How many {items} are in each {box}?",
    "{A} finds: n * m",
    "{A} has: a + x",
    "{A} has: y - b",
    "{B} gets: z / 2",
    "{B} has: w + c",
    "{B} has: v - d",
    "Each {box} has: u / k",
  ),
  problem(
    "three_owners",
    "{A} has {a} {items}. {B} has {b} fewer {items} than {A}. {C} has twice as many {items} as "
    "{B}. {A} finds {c} more and {C} loses {d} of them. {A} gets all of them and shares them "
    "equally among {n} friends. How many {items} does each friend get?",
    "{B} has: a - b",
    "{C} has: x * 2",
    "{A} has: a + c",
    "{C} has: y - d",
    "They have: z + x",
    "They have: v + w",
    "Each friend gets: u / n",
  ),
  problem(
    "three_owners",
    "{A} has {a} {items} and finds {b} more. {He} gives half of them to {B}, finds {c} more, "
    "loses {d} of them, gives half of the rest to {C} and then gets {n} {boxes} with {m} {items} "
    "in each {box}. How many {items} does {A} have now?",
    "{A} has: a + b",
    "{A} has: x / 2",
    "{A} has: y + c",
    "{A} has: z - d",
    "{A} has: w / 2",
    "{boxes} have: n * m",
    "{A} has: v + u",
  ),
  problem(
    "workshop",
    "{A} finds {n} {items} each day for {m} days and {B} finds {k} {items} each day for {j} days. "
    "{A} loses {a} {items} and {B} loses {b} {items}. {A} gets all of them, finds {c} more, gives "
    "half of them to {C} and loses {d} of the rest. How many {items} does {A} have left?",
    "{A} finds: n * m",
    "{B} finds: k * j",
    "{A} has: x - a",
    "{B} has: y - b",
    "{A} has: z + w",
    "{A} has: v + c",
    "{A} has: u / 2",
    "{A} has: t - d",
  ),
  problem(
    "workshop",
    "{A} has {a} {items}. {He} finds {b} more and gives {c} of them to {B}. {C} has twice as many "
    "{items} as {A} has left. {C} loses {d} of them, gives half of the rest to {B}, finds {e} "
    "more and then puts {n} {items} into each of {m} {boxes}. How many {items} does {C} have left?",
    "{A} has: a + b",
    "{A} has: x - c",
    "{C} has: y * 2",
    "{C} has: z - d",
    "{C} has: w / 2",
    "{C} has: v + e",
    "{boxes} have: n * m",
    "{C} has: u - t",
  ),
  problem(
    "gathering",
    "{A} has ${a} and gets ${n} each day for {m} days. {B} has ${b} and spends ${c}. {B} gives "
    "the rest to {A}. {A} spends half of the dollars, buys {k} {items} for ${j} each and then "
    "gets ${d} more. How many dollars does {A} have now?",
    "{A} gets: n * m",
    "{A} has: a + x",
    "{B} has: b - c",
    "{A} has: y + z",
    "{A} has: w / 2",
    "{items} cost: k * j",
    "{A} has: v - u",
    "{A} has: t + d",
  ),
  problem(
    "gathering",
    "{A} has {a} {items} and gives {c} of them to {C}. {B} has {b} {items} and finds {d} more. "
    "{A} gets all of them, loses half of them, finds {n} {boxes} with {m} {items} in each {box}, "
    "gives {e} {items} to {C} and shares the rest equally among {k} friends. How many {items} "
    "does each friend get?",
    "{A} has: a - c",
    "{B} has: b + d",
    "{A} has: x + y",
    "{A} has: z / 2",
    "{boxes} have: n * m",
    "{A} has: w + v",
    "{A} has: u - e",
    "Each friend gets: t / k",
  ),
)
