"""Whether the model that answered is the one that was asked: by rule, not by equality."""

from __future__ import annotations

import re

_REGION = re.compile(r"^(?:us|eu|apac|ap|jp|au|ca|sa|me|af|global|us-gov)\.", re.IGNORECASE)
_VENDOR = re.compile(
    r"^(?:anthropic|amazon|meta|mistral|cohere|ai21|deepseek|openai|google|qwen|nvidia|writer|stability)\.",
    re.IGNORECASE,
)
_REVISION = re.compile(r"-v\d+:\d+(?::\d+k)?$", re.IGNORECASE)
_VENDOR_REVISION = re.compile(r"-v\d+$", re.IGNORECASE)
_DATE = re.compile(r"[-@](20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01]))$")
_NUMBER = re.compile(r"-(\d{3,4})$")
_PREVIEW = re.compile(r"-(?:preview|exp)-(?:0[1-9]|1[0-2])-(?:20\d\d|[0-3]\d)$")


def _parts(model: str) -> tuple[str, str, bool]:
    """(family, snapshot or '', whether it is a floating alias)."""
    name = model.strip()
    name = name.rsplit("/", 1)[-1]
    name = _REVISION.sub("", _REGION.sub("", name))
    bare = _VENDOR.sub("", name)
    if bare != name:
        name = _VENDOR_REVISION.sub("", bare)
    floating = False
    if name.endswith("-latest"):
        name, floating = name[: -len("-latest")], True
    snapshot = ""
    if found := _DATE.search(name):
        snapshot = found.group(1).replace("-", "")
        name = name[: found.start()]
    elif (found := _PREVIEW.search(name)) or (found := _NUMBER.search(name)):
        snapshot = found.group(0)
        name = name[: found.start()]
    return name.lower(), snapshot, floating


def same_model(asked: str, served: str) -> bool:
    """Whether ``served`` may answer for ``asked``.

    An alias is answered by any snapshot of its family; a snapshot only by itself (or by the bare
    family name, which says nothing against it). Vendor, region, path and revision marks that the
    platforms put around a name do not count. A ``-latest`` alias without a version is answered by
    any version of its line.
    """
    if asked == served:
        return True
    family, snapshot, floating = _parts(asked)
    other, served_snapshot, _ = _parts(served)
    if snapshot and served_snapshot and snapshot != served_snapshot:
        return False
    if family == other:
        return True
    if floating and not re.search(r"\d", family):
        # gemini-flash-latest -> gemini-2.5-flash: the same words around a version.
        words = [w for w in re.split(r"-", other) if not re.fullmatch(r"[\d.]+", w)]
        return words == family.split("-")
    return False
