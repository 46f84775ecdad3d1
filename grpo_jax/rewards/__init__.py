"""Rewards, functions of an example and a completion, that `rewards.functions` names.

    reward(example, completion) -> float | [(token index, value), ...] | None

    reward(example, completions) -> [float, ...]

The second parameter's name tells them apart: one called `completions` gets all G completions of the
example, each with a text and tokens, and returns G outcomes. Such a reward cannot be `eval.reward`.
The first parameter is the example and may have any name but `prompts`, `completion` and
`completions`: a function that TRL would call by these names is refused. So are classes, async
functions and generators.

A reward cannot change the example or the completion (types.py): an attempt is a fault, like any
exception. It is called anew for each completion, in any order, on several hosts and in the
processes of `rewards.workers`, so that its value must follow from its arguments alone. The name of
a row of `rewards.functions` becomes the metric `reward/NAME`, so that it has no slash in it and is
neither `mean` nor `std`. `None` gives a completion no reward. If a reward gives none to any
completion of a step, a warning says so at once: a `return` may be missing.

A fourth entry of a row of `rewards.functions`, or `eval.arguments`, holds keyword arguments of the
reward. Its file may also have these functions, each with the same keyword arguments:

    answer_of(completion)    the final answer, which can be hashed; equal answers vote together in
                             maj@k, None does not vote; without this function there is no maj@k
    check_arguments()        raises SettingError if the arguments are invalid; called before
                             anything starts
    score_ahead([(example, completion), ...])
                             called with a batch before its completions are scored one by one; it
                             has `rewards.deadline` for each of them, and the run ends if it raises
                             an error or is late

    feedback(example, completion)
                             what a teacher is told of a completion (reference.prompt), or None

A file has one of each, for all of its rewards.
"""
