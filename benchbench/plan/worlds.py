"""What `--world` and a suite's `world` ask for: how many devices compute a step together, or which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchbench.errors import UsageError
from benchbench.model.placement import NAMES

MOST_DEVICES = 1024
HINT = "Write --world 2, --world 1,2,4, --world cuda:0+cuda:1 or --world cpu+cpu."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """So many devices from any that is chosen on; with `kind`, from the first of that kind on; or `names`."""

    devices: int
    kind: str = ""
    names: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """The name or kind of its first device, empty where any will do."""
        return self.names[0] if self.names else self.kind


def parse_world(text: int | str) -> WorldSpec:
    """`2`, `cuda:0+cuda:1`, or a kind so often as there are devices: `cpu+cpu`. Raises UsageError."""
    words = str(text).split(NAMES)
    if len(words) == 1 and words[0].isascii() and words[0].removeprefix("-").isdigit():
        return WorldSpec(devices=_checked(int(words[0])))
    kinds = {word.partition(":")[0] for word in words}
    if len(kinds) > 1 or not min(kinds)[:1].isalpha():
        raise UsageError(f"{text!r} is neither a number of devices nor devices of one kind.", HINT)
    if set(words) == kinds:
        return WorldSpec(devices=_checked(len(words)), kind=words[0])
    if len(set(words)) < len(words) or not all(word.partition(":")[2].isdecimal() for word in words):
        raise UsageError(f"{text!r} does not name different devices of one kind.", HINT)
    return WorldSpec(devices=_checked(len(words)), names=tuple(words))


def _checked(devices: int) -> int:
    """Raises UsageError."""
    if not 1 <= devices <= MOST_DEVICES:
        raise UsageError(
            f"A world of {devices} devices cannot be measured.",
            f"Give 1 to {MOST_DEVICES}, as in --world 1,2,4.",
        )
    return devices


def names_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names, empty where each device follows the one before: then the first and their number say it."""
    numbers = [int(name.partition(":")[2]) for name in names]
    return tuple(names) if any(after != before + 1 for before, after in pairwise(numbers)) else ()
