"""What TensorBoard reads."""

import struct

from tensorboardX.proto.event_pb2 import Event

from grpo_jax.writers import tensorboard


def test_it_has_the_numbers_by_step(tmp_path):
  writer = tensorboard.Writer(str(tmp_path), {}, 4)
  writer.write(5, {"kl": 0.5})
  writer.write(6, {"reward/mean": 1.0})
  writer.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  data, events = path.read_bytes(), []
  while data:  # a record: length, its checksum, the event, its checksum
    (size,) = struct.unpack("<Q", data[:8])
    events.append(Event.FromString(data[12 : 12 + size]))
    data = data[16 + size :]
  assert [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value] == [
    (5, "kl", 0.5),
    (6, "reward/mean", 1.0),
  ]
  # What a killed run wrote after its last checkpoint is dropped by TensorBoard.
  assert any(e.step == 5 and e.HasField("session_log") for e in events)
