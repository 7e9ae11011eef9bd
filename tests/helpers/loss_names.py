"""Built-in losses by name, primary and secondary."""

from calibrant.losses.registry import LOSSES, is_secondary

PRIMARY = {name: LOSSES.load(name) for name in LOSSES if not is_secondary(name)}
SECONDARY = {name: LOSSES.load(name) for name in LOSSES if is_secondary(name)}
