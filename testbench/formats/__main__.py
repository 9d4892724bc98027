"""Writes the samples of release 0.1 into tests/formats/release_0_1, and the tables of docs/formats.md.

Zone: real. `python -m testbench.formats`, in a clone with the whole history.
"""

from __future__ import annotations

from testbench.formats.children import write_with
from testbench.formats.page import PAGE, with_tables
from testbench.formats.stored import STORED, path_of
from testbench.releases import release_source


def main() -> None:
    """Write the files."""
    for old in STORED.rglob("*.bin"):
        old.unlink()
    for name, data in write_with(release_source()).items():
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        path_of(name).write_bytes(data)
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
