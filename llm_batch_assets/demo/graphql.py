"""The few GraphQL calls of the demo, over plain HTTP: no Dagster in this process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from llm_batch_assets.errors import LLMBatchError

REPOSITORY = "__repository__"

_ADD = """mutation ($partitionsDefName: String!, $key: String!, $repository: RepositorySelector!) {
  addDynamicPartition(partitionsDefName: $partitionsDefName, partitionKey: $key,
                      repositorySelector: $repository) {
    __typename ... on PythonError { message } ... on UnauthorizedError { message }
  }
}"""

_LAUNCH = """mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message } ... on RunConfigValidationInvalid { errors { message } }
    ... on InvalidSubsetError { message } ... on UnauthorizedError { message }
  }
}"""

_RUNS = """query { runsOrError(limit: 500) { __typename
  ... on Runs { results { runId status creationTime tags { key value } assetSelection { path } } }
  ... on PythonError { message } } }"""

_FAILURE = """query ($run: ID!) { runOrError(runId: $run) { __typename ... on Run {
  eventConnection(limit: 1000) { events { __typename
    ... on ExecutionStepFailureEvent { error { message } failureMetadata { description } }
    ... on RunFailureEvent { error { message } } } } } } }"""

_LOCATION = """query { workspaceOrError { __typename ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename ... on PythonError { message } } } } } }"""


class GraphQLError(LLMBatchError):
    """The web server did not do what was asked; the message is its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the demo looks at it."""

    run_id: str
    status: str
    created: float
    tags: dict[str, str]
    assets: tuple[str, ...]

    @property
    def by_sensor(self) -> str | None:
        """The sensor that asked for it, if one did."""
        return self.tags.get("dagster/sensor_name")


class Client:
    """Talks to one web server on loopback, past any proxy."""

    def __init__(self, web: str, location: str) -> None:
        self._url = f"{web}/graphql"
        self._location = location
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, query: str, **variables: Any) -> Any:
        """One query; returns its ``data``.

        Raises:
            GraphQLError: the server is not up, or the query has errors.
        """
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(  # noqa: S310 - loopback http, our own address
            self._url, body, {"Content-Type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=30) as reply:
                answer = json.load(reply)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise GraphQLError(f"The web server does not answer: {error}") from error
        if answer.get("errors"):
            raise GraphQLError("; ".join(e.get("message", "?") for e in answer["errors"]))
        return answer["data"]

    def location_loaded(self) -> bool | None:
        """True once the code location is loaded, None before.

        Raises:
            GraphQLError: it cannot be loaded; the message says why.
        """
        try:
            found = self.ask(_LOCATION)["workspaceOrError"]
        except GraphQLError:
            return None
        for entry in found.get("locationEntries", ()):
            loaded = entry["locationOrLoadError"]
            if entry["name"] == self._location and entry["loadStatus"] == "LOADED" and loaded:
                if loaded["__typename"] == "PythonError":
                    raise GraphQLError(f"The code location does not load: {loaded['message']}")
                return True
        return None

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition; one that exists already is fine."""
        repository = {"repositoryName": REPOSITORY, "repositoryLocationName": self._location}
        found = self.ask(_ADD, partitionsDefName=definition, key=key, repository=repository)
        answer = found["addDynamicPartition"]
        if answer["__typename"] not in (
            "AddDynamicPartitionSuccess",
            "DuplicateDynamicPartitionError",
        ):
            raise GraphQLError(f"{answer['__typename']}: {answer.get('message')}")

    def materialize(self, asset: list[str], partition: str) -> str:
        """Launch one partition of one asset, as its button does; returns the run id."""
        params = {
            "selector": {
                "repositoryName": REPOSITORY,
                "repositoryLocationName": self._location,
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": asset}],
                "assetCheckSelection": [],
            },
            "mode": "default",
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        }
        answer = self.ask(_LAUNCH, params=params)["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise GraphQLError(f"{answer['__typename']}: {answer.get('message', answer)}")
        return str(answer["run"]["runId"])

    def failure(self, run_id: str) -> str:
        """Why a run failed: its step's own sentence where there is one."""
        found = self.ask(_FAILURE, run=run_id)["runOrError"]
        for event in found.get("eventConnection", {}).get("events", ()):
            said = (event.get("failureMetadata") or {}).get("description")
            if said or event.get("error"):
                return str(said or event["error"]["message"]).strip()
        return "no reason is recorded"

    def runs(self) -> list[Run]:
        """Every run of the instance, oldest first."""
        found = self.ask(_RUNS)["runsOrError"]
        if found["__typename"] != "Runs":
            raise GraphQLError(f"{found['__typename']}: {found.get('message')}")
        runs = [
            Run(
                r["runId"],
                r["status"],
                r["creationTime"],
                {tag["key"]: tag["value"] for tag in r["tags"]},
                tuple("/".join(key["path"]) for key in r["assetSelection"] or ()),
            )
            for r in found["results"]
        ]
        return sorted(runs, key=lambda run: run.created)
