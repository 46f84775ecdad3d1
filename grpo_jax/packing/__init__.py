"""Lays the learner's tokens out: in rows for attention, and in lists without padding for the rest.

One group, a prompt of 3 tokens (width Lp = 4) with G = 4 completions of 4, 1, 2 and 3 tokens (width
L = 4):

    prompt [Lp]         completions [G, L]
    p0 p1 p2 .          a0 a1 a2 a3
                        b0 .  .  .
                        c0 c1 .  .
                        d0 d1 d2 .

Rows [R, T] (rows.py). Completions of one group share a row of T places, each in one piece;
`segments` says which one a token belongs to and `offsets` its position in it. Attention runs on
rows: a token sees its prompt and its own segment.

    tokens              segments            offsets
    a0 a1 a2 a3         0  0  0  0          0  1  2  3
    d0 d1 d2 b0         3  3  3  1          0  1  2  0
    c0 c1 .  .          2  2 -1 -1          0  1  0  0

Lists (lists.py). The rest of a layer, and the head, treat each token by itself, so they are
computed on real tokens only: a list of the tokens of all prompts, followed by a list of those of
all rows. Sizes of lists are rounded up to a few, so that few programs are compiled. Each shard of
the mesh has its own lists, for its prompts and its rows.

    [p0 p1 p2 (the next prompt ...) .  | a0 a1 a2 a3 d0 d1 d2 b0 c0 c1 (the next group ...) .  .]

`plan.py` chooses on the host, from the lengths, which completion goes to which row and how long the
lists are. Where rows or a list would save little there are none, and padding is computed.
`microbatches.py` cuts a batch along its prompts. None of this changes a result by more than
rounding.
"""
