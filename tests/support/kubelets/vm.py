"""The values of a VM that its Node needs."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Vm:
    provider_id: str
    node_name: str
    address: str
    labels: dict = field(default_factory=dict)
