"""Files that commands draw into."""

from pathlib import Path

from attn_mlir.errors import SpecError


def check_svg(option: str, path: Path) -> None:
    """Refuses a name that is not that of a picture, such as that of the file to draw.

    Raises:
      SpecError: the path does not end in `.svg`; names the option.
    """
    if path.suffix.lower() != ".svg":
        raise SpecError(
            f"{option} must end in .svg, got {str(path)!r}: pictures are SVG, which browsers show "
            "and other programs convert"
        )
