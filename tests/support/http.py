"""What a server says over HTTP while it starts."""

from __future__ import annotations

import urllib.error
import urllib.request


def answers(url: str) -> bool:
    """Whether it answers with 200 within five seconds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        return False
    except OSError:
        return False
