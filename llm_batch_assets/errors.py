"""A small hierarchy: what happened, whether an effect is certain, what the reader can do."""

from __future__ import annotations

from typing import Literal

Effect = Literal["none", "done", "unknown"]
"""Whether the outside world changed: certainly not, certainly, or nobody knows yet."""


class LLMBatchError(Exception):
    """Root of all errors of this package.

    Attributes:
        effect: whether anything outside this process changed.
        remedy: one sentence on what the reader can do, or an empty string.
        exit_code: what the command line exits with.
    """

    exit_code = 1

    def __init__(self, message: str, *, effect: Effect = "none", remedy: str = "") -> None:
        super().__init__(message if not remedy else f"{message} {remedy}")
        self.effect: Effect = effect
        self.remedy = remedy


class InputError(LLMBatchError):
    """Wrong use or unreadable input: nothing was sent, nothing half-written."""

    exit_code = 2


class WorkloadError(InputError):
    """A workload that does not validate; the message names the field and what to write."""


class DatasetError(InputError):
    """A table that cannot be frozen; the message names the first offenders."""


class DriftError(InputError):
    """Other rows under a frozen dataset: refused with counts.

    Attributes:
        added: records that the frozen revision does not have.
        changed: records whose request differs.
        removed: records that the table no longer has.
    """

    def __init__(self, message: str, *, added: int, changed: int, removed: int) -> None:
        super().__init__(message)
        self.added, self.changed, self.removed = added, changed, removed


class GateClosed(LLMBatchError):
    """A gate refuses for now; the message says what would release it."""

    exit_code = 4


class GateFault(LLMBatchError):
    """A workload's own rule has left the code, or fails: what it should judge waits for it."""


class NotReady(GateClosed):
    """The thing asked for is still in flight; the message says how far it is."""

    exit_code = 3


class LedgerError(LLMBatchError):
    """The ledger refuses."""


class TransitionRefused(LedgerError):
    """An arc that the transition table does not have, or a state that has moved on."""


class LeaseLost(LedgerError):
    """Another worker holds the target now; whatever this one decided is void."""


class LabelConflict(InputError):
    """A known version label with other content; both digests are named."""


class WrongStore(LedgerError):
    """The artifact store is not the one that the ledger records."""


class SchemaMismatch(LedgerError):
    """The ledger's schema is newer than this program, or was never migrated."""


class ArtifactError(LLMBatchError):
    """An object is absent, or its bytes do not have the digest that names it."""


class DownloadError(LLMBatchError):
    """A result file could not be fetched whole; no record changes its state."""


class ResultsGone(DownloadError):
    """The provider no longer has the result file.

    Attributes:
        certain: False for a 404 alone, which reports say may pass (field notes B08).
    """

    def __init__(self, message: str, *, certain: bool = True, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.certain = certain


ProviderFault = Literal["refused_now", "refused", "account", "not_found", "transport", "unknown"]


class ProviderError(LLMBatchError):
    """A provider call that did not answer as asked.

    Attributes:
        fault: ``refused_now`` (the provider's own JSON said 429 or capacity), ``refused`` (its
            own JSON said a 4xx that will not pass), ``account`` (credential, permission, billing),
            ``not_found`` (404), ``transport`` (nothing readable came back), ``unknown``.
        effect: for a create, ``unknown`` for anything but the provider's own refusal.
        operation: upload, create, list, get, download, cancel, delete.
        http_status: the status, or None when there was none.
        code: the provider's error code or type, bounded to 200 characters.
        request_id: the provider's request id.
        retry_after: seconds that the provider asked to wait, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        operation: str,
        fault: ProviderFault,
        effect: Effect,
        http_status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, effect=effect, remedy=remedy)
        self.provider = provider
        self.operation = operation
        self.fault: ProviderFault = fault
        self.http_status = http_status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
