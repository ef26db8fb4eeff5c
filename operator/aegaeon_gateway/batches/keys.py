"""The names of all objects in the store. What is a tenant's lies below a hash of its name."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

FILES, BATCHES, OPEN = "files", "batches", "open"
RECORD, CONTENT = ".json", ".data"


def of_tenant(tenant: str) -> str:
    """A client without a key is the tenant with an empty name."""
    return sha256(tenant.encode(errors="surrogatepass")).hexdigest()[:32]


def files_of(tenant: str) -> str:
    return f"{FILES}/{of_tenant(tenant)}"


def batches_of(tenant: str) -> str:
    return f"{BATCHES}/{of_tenant(tenant)}"


def open_of(tenant: str) -> str:
    return f"{OPEN}/{of_tenant(tenant)}"


def leases_of(open_: str) -> str:
    """`BatchKeys.leases` of the batch with this `BatchKeys.open`."""
    return f"{BATCHES}{open_.removeprefix(OPEN)}/leases"


def file_record(tenant: str, id_: str) -> str:
    return f"{files_of(tenant)}/{id_}{RECORD}"


def file_content(tenant: str, id_: str) -> str:
    return f"{files_of(tenant)}/{id_}{CONTENT}"


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of one batch."""

    tenant: str
    id: str

    @property
    def folder(self) -> str:
        return f"{batches_of(self.tenant)}/{self.id}"

    @property
    def order(self) -> str:
        return f"{self.folder}/order.json"

    @property
    def progress(self) -> str:
        return f"{self.folder}/progress.json"

    @property
    def end(self) -> str:
        """Its progress once it is over: written once, by the first gateway that does."""
        return f"{self.folder}/end.json"

    @property
    def cancelled(self) -> str:
        """Holds when, as unix seconds."""
        return f"{self.folder}/cancelled"

    @property
    def leases(self) -> str:
        return f"{self.folder}/leases"

    @property
    def answers(self) -> str:
        return f"{self.folder}/answers"

    @property
    def open(self) -> str:
        """There while the batch is not over; holds its order."""
        return f"{open_of(self.tenant)}/{self.id}"
