"""The laws as a kit: one call checks a method, a rule, a partition or an engine, and says in words what is broken."""

from fedkeel.testing.broken_law import BrokenLaw
from fedkeel.testing.checks import check_method, check_rule
from fedkeel.testing.engines import check_engine
from fedkeel.testing.partitions import check_partition
