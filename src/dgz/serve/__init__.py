"""A trained model behind HTTP, with a page for people."""

try:
    import fastapi  # noqa: F401 (only whether it is there)
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    from dgz.errors import DGZError

    raise DGZError(f"Serving a model needs {error.name}: install dgz[serve].") from error

from dgz.serve.app import create_app, serve
from dgz.serve.engine import Engine, Limits, open_engine

__all__ = ["Engine", "Limits", "create_app", "open_engine", "serve"]
