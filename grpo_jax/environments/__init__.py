"""Environments: what answers the turns of an episode, one file each.

`config.environment.name` names a module of this folder, or a file or module of yours. It has

    step(state, completion)   answers one turn of the policy with a types.Turn: the next state, what
                              the policy reads next (None: the episode is over), and a reward
    reset(example, key)       returns the first state, JSON; without it the state is
                              {"question": ..., "solution": ..., "answer": ..., "meta": ...}

and both take `environment.arguments` as keyword arguments. `completion` is the turn alone, as a
reward sees a completion. An environment is a function of its arguments: what it must remember is in
the state, and what it draws at random follows from `key`, a number that the samples of a prompt
share. docs/environments.md shows how to write one.
"""
