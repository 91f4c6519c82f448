"""An independent reference for OpenAI responses files: slow and literal, no code of ours."""

import json
import math

import jsonschema_rs

CHANGE = {"invalid_request", "invalid_value"}
FIRST = dict.fromkeys(("insufficient_quota", "invalid_api_key"), "retryable")
FIRST |= {"batch_expired": "expired", "batch_cancelled": "cancelled"}
RETRY = {401, 402, 403, 408, 409, 424, 425, 429, 498, 499}
SETS = ("succeeded", "retryable", "permanent_failure", "cancelled", "expired", "missing")


def parse(text, answer=False):
    def pairs(found):
        if len(dict(found)) != len(found):
            raise ValueError("key twice")
        return dict(found)

    def word(constant):
        raise ValueError(constant)

    def number(digits):
        return float(digits) if not answer or math.isfinite(float(digits)) else word(digits)

    return json.loads(text, object_pairs_hook=pairs, parse_constant=word, parse_float=number)


def by_error(error, status):
    named = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    words = [word for word in named if isinstance(word, str)]
    if FIRST.keys() & set(words):
        return next(FIRST[word] for word in words if word in FIRST)
    if status is not None and not 200 <= status < 300:
        return "permanent_failure" if 400 <= status < 500 and status not in RETRY else "retryable"
    return "permanent_failure" if CHANGE & set(words) else "retryable"


def by_row(row, valid):
    error, response = row.get("error") or None, row.get("response")
    if not isinstance(response, dict):
        return by_error(error, None), None
    status, body = response["status_code"], response.get("body")
    if type(status) is not int or not 200 <= status < 300:
        inner = body.get("error") if isinstance(body, dict) else None
        return by_error(inner or error or body, status if type(status) is int else None), None
    if error or body.get("error"):
        return by_error(error or body["error"], status), None
    messages = [item for item in body["output"] if item["type"] == "message"]
    whole = {body["status"], *(i.get("status", "completed") for i in messages)} == {"completed"}
    text = "".join(p["text"] for i in messages for p in i["content"] if p["type"] == "output_text")
    value = parse(text, answer=True)
    json.dumps([value, text], ensure_ascii=False).encode()
    return ("succeeded", text) if whole and valid.is_valid(value) else ("retryable", None)


def reference(ids, files, schema):
    """(the sets, accepted texts by id, number of unreadable lines)."""
    valid = jsonschema_rs.Draft202012Validator(schema)
    rows, answers, bad, sets = {}, {}, 0, {name: set() for name in (*SETS, "duplicate", "unknown")}
    for line in (ln for data in files for ln in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        try:
            row = parse(line.rstrip(b"\r").decode()) if line.strip(b" \t\r") else {"custom_id": 0}
            name = row["custom_id"] if isinstance(row["custom_id"], str) else row["custom_id"] + ""
            rows.setdefault(name or [], {})[line.rstrip(b"\r")] = row
        except (ValueError, RecursionError, KeyError, TypeError):
            bad += line.strip(b" \t\r") != b""
    for name in ids | rows.keys():
        found = list(rows.get(name, {}).values())
        try:
            cls, text = by_row(found[0], valid) if found else ("missing", None)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            cls, text = "retryable", None
        cls = "unknown" if name not in ids else "duplicate" if len(found) > 1 else cls
        sets[cls].add(name)
        if cls == "succeeded":
            answers[name] = text
    return sets, answers, bad
