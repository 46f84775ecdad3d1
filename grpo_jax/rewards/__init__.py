"""Rewards: functions of an example and a completion, which `rewards.functions` and `eval.reward`
name.

    reward(example, completion) -> float | [(token index, value), ...] | None

    reward(example, completions) -> [float, ...]

The second parameter's name tells them apart: one called `completions` is given all G completions of
the example, each with a text and tokens, and returns G numbers, of outcomes. Such a reward cannot
be `eval.reward`. The first parameter is the example and may have any name but `prompts`,
`completion` and `completions`: a function that TRL would call by these names is refused. So are
classes, async functions and generators.

A reward sees the example and the completion, and cannot change them (types.py): trying to is a
fault, as any exception is. It is called for each completion anew, in any order and on several
hosts, so what it returns must follow from its arguments alone. The name of a row of
`rewards.functions` becomes the metric `reward/NAME`, so it has no slash in it and is neither `mean`
nor `std`.

`None` gives a completion no reward. Where a reward gives none to any completion of a step, that is
said at once: a `return` may be missing.

A fourth entry of a row of `rewards.functions`, or `eval.arguments`, holds keyword arguments for it.
Beside a reward its file may hold, each taking the same keyword arguments:

    answer_of(completion)            the final answer, which can be hashed: answers that are equal vote together in
                                     maj@k; None for no vote. Without this function there is no
                                     maj@k
    check_arguments()                raises SettingError where the arguments cannot be; called before anything starts
    score_ahead([(example, completion), ...])   called with a batch before its completions are scored one by one; it has
                                     `rewards.deadline` for each of them, and the run ends where it
                                     raises or is late

A file has one of each, for all of its rewards.
"""
