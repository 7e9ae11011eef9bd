"""Watch a model in production, with alarms that are valid however often one looks."""

from calibrant.monitor.monitor import Monitor, Receipt
from calibrant.monitor.status import Alarm, Series, Status

__all__ = ["Alarm", "Monitor", "Receipt", "Series", "Status"]
