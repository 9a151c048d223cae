"""Without a server's packages there is nothing to test."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("starlette", "uvicorn"))) else ["test_*.py"]
