"""Names two types that a type checker cannot look into."""

from typing import Any

Json = dict[str, Any]  # a JSON object
Tree = Any  # a pytree of arrays, or of their shapes
