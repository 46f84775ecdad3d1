"""What moves between chips, counted from the text of programs: of simulated devices, exactly, and
written by hand.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.plan import collectives

# What the CPU's compiler does not write: an asynchronous gather in pieces, fused with work that
# overlaps it.
BY_HAND = """HloModule jit_f, is_scheduled=true

FunctionNames
1 "<module>"
2 "token_stats"
3 "frozen_outputs"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1}
2 {file_name_id=1 function_name_id=3 line=2}
3 {file_name_id=1 function_name_id=2 line=3}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}

%first (p: bf16[8,16]) -> (bf16[8,16], bf16[8,128]) {
  %p = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.1 = bf16[8,128]{1,0} all-gather(%p), channel_id=5, replica_groups=mesh['a'=1,'b'=8] {'b'}, dimensions={1}
  ROOT %t = (bf16[8,16]{1,0}, bf16[8,128]{1,0}) tuple(%p, %all-gather.1)
}

%second (q: bf16[8,16]) -> bf16[8,128] {
  %q = bf16[8,16]{1,0} parameter(0)
  %kernel = bf16[8,16]{1,0} custom-call(%q), custom_call_target="x", backend_config={"a": {
"lines": "of its own"
}}
  ROOT %all-gather.2 = bf16[8,128]{1,0} all-gather(%kernel), channel_id=5, replica_groups=mesh['a'=1,'b'=8] {'b'}
}

%middle (q: bf16[8,16]) -> bf16[8,16] {
  %q.1 = bf16[8,16]{1,0} parameter(0)
  %all-gather.3 = bf16[8,128]{1,0} all-gather(%q.1), channel_id=5, replica_groups=mesh['a'=1,'b'=8] {'b'}
  ROOT %work = bf16[8,16]{1,0} add(%q.1, %q.1)
}

%meanwhile (s: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %s.3 = (s32[]{:T(128)}, bf16[8,16]{1,0}) parameter(0)
  %i.3 = s32[]{:T(128)} get-tuple-element(%s.3), index=0
  %x.3 = bf16[8,16]{1,0} get-tuple-element(%s.3), index=1
  %worked = bf16[8,16]{1,0} fusion(%x.3), kind=kCustom, calls=%middle
  ROOT %out.3 = (s32[]{:T(128)}, bf16[8,16]{1,0}) tuple(%i.3, %worked)
}

%all-reduce-scatter.1 (r: f32[64,16]) -> f32[8,16] {
  %r = f32[64,16]{1,0} parameter(0)
  %all-reduce.3 = f32[64,16]{1,0} all-reduce(%r), channel_id=6, replica_groups=[1,8]<=[8], to_apply=%sum
  ROOT %slice = f32[8,16]{1,0} dynamic-slice(%all-reduce.3), dynamic_slice_sizes={8,16}
}

%body (s: (s32[], bf16[8,16])) -> (s32[], bf16[8,16]) {
  %s = (s32[]{:T(128)}, bf16[8,16]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %x = bf16[8,16]{1,0} get-tuple-element(%s), index=1
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i, %two)
  %start = (bf16[8,16]{1,0}, bf16[8,16]{1,0}, u32[]) collective-permute-start(%x), source_target_pairs={{0,4},{4,0}}, OP
  %done = bf16[8,16]{1,0} collective-permute-done(%start)
  ROOT %out = (s32[]{:T(128)}, /*index=1*/bf16[8,16]{1,0}) tuple(%next, %done)
}

%condition (s: (s32[], bf16[8,16])) -> pred[] {
  %s.1 = (s32[]{:T(128)}, bf16[8,16]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(7)
  %i.1 = s32[]{:T(128)} get-tuple-element(%s.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

%never (s: (s32[], bf16[8,16])) -> pred[] {
  %s.2 = (s32[]{:T(128)}, bf16[8,16]{1,0}) parameter(0)
  ROOT %some = pred[] custom-call(%s.2), custom_call_target="y"
}

%elsewhere (z: f32[4]) -> f32[4] {
  %z = f32[4]{0} parameter(0)
  ROOT %all-to-all.1 = f32[4]{0} all-to-all(%z), channel_id=9, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}

ENTRY %main (x: bf16[8,16], y: f32[64,16]) -> bf16[8,128] {
  %x.1 = bf16[8,16]{1,0} parameter(0)
  %y = f32[64,16]{1,0} parameter(1)
  %one = s32[]{:T(128)} constant(1)
  %copy = s32[]{:T(128)} copy(%one)
  %given = (s32[]{:T(128)}, bf16[8,16]{1,0}) tuple(%copy, %x.1)
  %known = (s32[]{:T(128)}, bf16[8,16]{1,0}) while(%given), condition=%condition, body=%body
  %unknown = (s32[]{:T(128)}, bf16[8,16]{1,0}) while(%given), condition=%never, body=%body
  %z.1 = f32[4]{0} constant({1, 2, 3, 4})
  %sent = ((f32[4]{0}), f32[4]{0}, u32[]) call-start(%z.1), async_execution_thread="sparsecore", to_apply=%elsewhere
  %arrived = f32[4]{0} call-done(%sent), to_apply=%elsewhere
  %token = token[] after-all()
  %share = (f32[64,2]{1,0}, u32[], token[]) send(%y, %token), channel_id=3, is_host_transfer=true, MEGA
  %gone = token[] send-done(%share), channel_id=3, is_host_transfer=true
  %scattered = f32[8,16]{1,0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.1
  %begun = (bf16[8,16]{1,0}, bf16[8,128]{1,0}) fusion(%x.1), kind=kCustom, calls=%first
  %between = (s32[]{:T(128)}, bf16[8,16]{1,0}) while(%given), condition=%never, body=%meanwhile
  ROOT %ended = bf16[8,128]{1,0} fusion(%x.1), kind=kCustom, calls=%second
}
""".replace("OP", 'metadata={op_name="jit(f)/transpose(jvp())/dot" stack_frame_id=3}').replace(
  "MEGA",
  'frontend_attributes={_xla_host_transfer_rendezvous="psum.4_0",_xla_megascale_reduce_operation="SUM",'
  '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}',
)


@pytest.fixture(scope="module")
def by_hand():
  return collectives.collectives(BY_HAND, 8, [0] * 4 + [1] * 4)


def compiled_text(f, *shapes, specs, out):
  mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
  args = [
    jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
    for shape, spec in zip(shapes, specs)
  ]
  return (
    jax.jit(functools.partial(f, mesh), out_shardings=NamedSharding(mesh, out))
    .lower(*args)
    .compile()
    .as_text()
  )


def test_a_gather_inside_two_scans_counts_as_often_as_it_runs():
  def step(mesh, x, w):
    whole = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, PartitionSpec()))
    return jnp.tanh(x @ whole), None

  def f(mesh, x, w):
    def outer(x, w_of):
      return jax.lax.scan(functools.partial(step, mesh), x, w_of)

    return jax.lax.scan(outer, x, w)[0]

  spec = PartitionSpec(None, None, "b", None)
  text = compiled_text(
    f, (8, 32), (3, 5, 32, 32), specs=(PartitionSpec("a"), spec), out=PartitionSpec("a")
  )
  found = [each for each in collectives.collectives(text, 8) if each.kind == "all-gather"]
  assert [(each.bytes, each.times, each.group, each.unknown_loops) for each in found] == [
    (32 * 32 * 4, 15, 4, ())
  ]
  assert collectives.totals(found) == {"all-gather": 15 * 4096}
  assert found[0].sent == 15 * 4096 * 3 / 4


def test_a_sum_counts_its_operand_and_sends_it_twice():
  text = compiled_text(
    lambda mesh, x, y: x @ y,
    (16, 64),
    (64, 24),
    specs=(PartitionSpec(None, "b"), PartitionSpec("b")),
    out=PartitionSpec(),
  )
  (found,) = collectives.collectives(text, 8)
  assert (found.kind, found.bytes, found.times, found.group) == ("all-reduce", 16 * 24 * 4, 1, 4)
  assert found.sent == 2 * 16 * 24 * 4 * 3 / 4


def test_a_loop_that_stops_by_what_it_computes_counts_once_and_is_named():
  def f(mesh, x):
    def turn(x):
      return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, PartitionSpec("b")))

    whole = NamedSharding(mesh, PartitionSpec())
    return jax.lax.while_loop(
      lambda x: jax.lax.with_sharding_constraint(x, whole).sum() > 1, turn, x
    )

  text = compiled_text(f, (64,), specs=(PartitionSpec("b"),), out=PartitionSpec("b"))
  found = collectives.collectives(text, 8)
  assert found and all(each.times == 1 and len(each.unknown_loops) == 1 for each in found)


def test_by_hand(by_hand):
  rows = [
    (each.kind, each.bytes, each.times, each.group, bool(each.unknown_loops)) for each in by_hand
  ]
  assert rows == [
    ("collective-permute", 8 * 16 * 2, 3, 2, False),  # from 1 in twos to 7
    ("collective-permute", 8 * 16 * 2, 1, 2, True),
    ("all-to-all", 16, 1, 4, False),  # on another processor
    ("all-reduce", 64 * 2 * 4, 1, 2, False),  # of a chip's share, between two slices
    ("reduce-scatter", 64 * 16 * 4, 1, 8, False),
    ("all-gather", 8 * 128 * 2, 1, 8, False),  # once, though three fusions hold it, one in a loop
  ]


def test_which_cross_slices(by_hand):
  assert [each.across_slices for each in by_hand] == [each.kind != "all-to-all" for each in by_hand]
  assert by_hand[3].op_name == "psum.4_0"


@pytest.mark.parametrize(
  "text, groups",
  [
    ("replica_groups={{0,1},{2,3}}, x", ((0, 1), (2, 3))),
    ("replica_groups={}, x", ((0, 1, 2, 3),)),
    ("replica_groups=[2,2]<=[4], x", ((0, 1), (2, 3))),
    ("replica_groups=[2,2]<=[2,2]T(1,0), x", ((0, 2), (1, 3))),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", ((0, 2), (1, 3))),
    ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x", ((0, 1, 2, 3),)),
    ("replica_groups=mesh['a'=4] {'a':(2)2}, x", ((0, 1), (2, 3))),
    ("replica_groups=mesh['a'=4] {'a':(1)2}, x", ((0, 2), (1, 3))),
  ],
)
def test_forms_of_groups(text, groups):
  assert collectives._groups(text, 4) == groups


def test_groups_of_an_unknown_form_are_refused():
  with pytest.raises(ValueError, match="unknown form: spiral"):
    collectives._groups("replica_groups=spiral", 4)


def test_a_collective_that_nothing_calls_is_not_lost():
  with pytest.raises(ValueError, match="all-to-all.1 in elsewhere: nothing"):
    collectives.collectives(BY_HAND.replace("call-start", "some-start"), 8)
