"""The end of a strike `wait`.

Zone: pure.
"""

from typing import Final

GO: Final = "go"
"""The file beside the strikes that lets a waiting task continue."""
