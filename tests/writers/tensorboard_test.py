"""What TensorBoard reads."""

import struct

import pytest
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


def test_an_error_of_the_disk_is_that_of_the_call(tmp_path, monkeypatch):
  """Raises each time; a thread had ended at it, and the eleventh number waited for that thread."""
  writer = tensorboard.Writer(str(tmp_path), {}, 0)

  def full(data):
    raise OSError(28, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(writer.events._py_recordio_writer, "write", full)
    for step in range(3):
      with pytest.raises(OSError, match="No space left"):
        writer.write(step, {f"metric{n}": 0.0 for n in range(20)})
  writer.write(3, {"kl": 0.5})  # there is room again
  writer.close()
