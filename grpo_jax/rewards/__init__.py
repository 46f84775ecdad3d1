"""Rewards: functions of an example and a completion, which `rewards.functions` and `eval.reward` name.

    reward(example, completion) -> float | [(token index, value), ...] | None

    reward(example, completions) -> [float, ...]

The second parameter's name tells them apart: one called `completions` is given all G completions of the example, each
with a text and tokens, and returns G numbers, of outcomes. Such a reward cannot be `eval.reward`.

A fourth entry of a row of `rewards.functions`, or `eval.arguments`, holds keyword arguments for it. Beside a reward its
file may hold, each taking the same keyword arguments:

    answer_of(completion)            the final answer, which can be hashed: answers that are equal vote together in
                                     maj@k; None for no vote. Without this function there is no maj@k
    check_arguments()                raises SettingError where the arguments cannot be; called before anything starts
    score_ahead([(example, completion), ...])   called with a batch before its completions are scored one by one; it has
                                     `rewards.deadline` for each of them, and the run ends where it raises or is late

A file has one of each, for all of its rewards.
"""
