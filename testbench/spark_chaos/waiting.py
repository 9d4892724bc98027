"""What a strike `wait` waits for.

Zone: pure.
"""

from typing import Final

GO: Final = "go"
"""The file beside the strikes whose presence lets a task that waits go on."""
