from tests.toy_plugins import plugins, write_study  # noqa: F401
