"""The commands `longca config`: the settings in force."""

from typing import Any

import typer

from longca.lab.cli.options import Json, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Settings in force, and where each comes from.")


@app.callback()
def group() -> None:
    """Make `show` a command of its own."""


@app.command()
def show(as_json: Json = False) -> None:
    """Show each setting with the file or variable that it comes from, and the folders in use."""
    from longca.core import PACKAGE_ROOT, plugin_folders
    from longca.core.secrets import data_without_secrets
    from longca.lab.studies import settings
    from longca.lab.studies.checkout import studies_folder

    shown = [setting._replace(value=data_without_secrets(setting.value)) for setting in settings()]
    studies = studies_folder().absolute()
    folders: dict[str, Any] = {"package": PACKAGE_ROOT, "studies": studies, "plug-ins": plugin_folders()}
    results = next(setting.value for setting in shown if setting.name == "results").absolute()
    if as_json:
        print_json(
            {
                "settings": {name: {"value": value, "origin": origin} for name, value, origin in shown},
                "folders": {**folders, "results": results},
            }
        )
        return
    print_table(
        "Settings",
        ["setting", "value", "from"],
        [[name, str(value), origin] for name, value, origin in shown],
    )
    for name, folder in {**folders, "results": results}.items():
        print(f"{name}: {(', '.join(map(str, folder)) or 'none') if isinstance(folder, list) else folder}")
