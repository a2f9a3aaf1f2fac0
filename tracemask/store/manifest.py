"""Receipts and the manifest: what a dataset must consist of, each document sealed by its own hash. Reads no token."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.core.finding import Finding, Place
from tracemask.core.fingerprint import canonical_json
from tracemask.store.counts import Counts
from tracemask.store.folder import Folder, open_folder
from tracemask.store.schema import FORMAT_VERSION
from tracemask.store.sink import TEMPORARY

if TYPE_CHECKING:
    from tracemask.store.reader import Dataset

MANIFEST = "manifest.json"
SHARD_SUFFIX = ".arrow"
RECEIPT_SUFFIX = ".receipt.json"
_OURS = re.compile(r"shard-[0-9]{5,}-[0-9a-f]{12}(\.arrow|\.receipt\.json)")
_LEFT = re.compile(re.escape(TEMPORARY) + rf"({_OURS.pattern}|manifest\.json)\.[0-9]+\.[0-9]+")


class Document(BaseModel):
    model_config = ConfigDict(extra="allow")


class Input(Document):
    """One file that was read. path: relative to the input root."""

    path: str
    format: str
    sha256: str
    units: int


class Skip(Document):
    """One record that could not become rows."""

    code: str
    where: str
    what: str
    fix: str = ""


class Notes(Document):
    """What the reader of the logs had to say, counted.

    unknown_fields: path → records. author_rules: rule label → tokens it gave an author. notes: sentence → times.
    """

    unknown_fields: dict[str, int] = Field(default_factory=dict)
    author_rules: dict[str, int] = Field(default_factory=dict)
    notes: dict[str, int] = Field(default_factory=dict)

    def add(self, other: Notes) -> None:
        """Adds `other` to this one, keys in order."""
        for name in ("unknown_fields", "author_rules", "notes"):
            both = Counter(getattr(self, name))
            both.update(getattr(other, name))
            setattr(self, name, dict(sorted(both.items())))


class Receipt(Document):
    """The proof that one range became one shard. range: half-open, in units over all inputs."""

    kind: Literal["receipt"] = "receipt"
    format_version: str = FORMAT_VERSION
    name: str
    bytes: int
    sha256: str
    plan: str
    range: tuple[int, int]
    counts: Counts
    skipped: list[Skip] = Field(default_factory=list)
    reading: Notes = Field(default_factory=Notes)


class Shard(Document):
    """One shard as the manifest knows it. receipt: sha256 of the receipt's file."""

    name: str
    bytes: int
    sha256: str
    receipt: str
    rows: int
    tokens: int
    sampled: int


class Manifest(Document):
    """The dataset: written last, from the receipts. plan: fingerprint of inputs and configuration."""

    kind: Literal["manifest"] = "manifest"
    format_version: str = FORMAT_VERSION
    plan: str
    config: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    inputs: list[Input] = Field(default_factory=list)
    shards: list[Shard] = Field(default_factory=list)
    counts: Counts = Field(default_factory=Counts)
    skipped: list[Skip] = Field(default_factory=list)
    reading: Notes = Field(default_factory=Notes)


D = TypeVar("D", Receipt, Manifest)


def schema() -> dict[str, Any]:
    """The published JSON Schema of manifest.json; a receipt is its definition `Receipt`."""
    published = Manifest.model_json_schema()
    receipt = Receipt.model_json_schema()
    definitions = {**receipt.pop("$defs", {}), **published.pop("$defs", {}), "Receipt": receipt}
    properties = {**published["properties"], "seal": {"type": "string", "description": "sha256 of everything else"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "tracemask/manifest.v1.schema.json",
        **published,
        "properties": properties,
        "$defs": dict(sorted(definitions.items())),
    }


def seal(document: Document) -> bytes:
    """The document's one spelling, with the hash of its content inside; any changed byte is found by `unseal`."""
    content = document.model_dump(mode="json")
    content.pop("seal", None)
    content["seal"] = hashlib.sha256(canonical_json(content)).hexdigest()
    return (json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def unseal(kind: type[D], data: bytes, *, where: str) -> D:
    """The document in `data`. TM508: cut, changed by a byte, or of another kind."""
    broken = StoreError("TM508", where=where, what="changed or cut since it was written", fix="convert again")
    try:
        content = json.loads(data)
        stated = content.pop("seal")
        document = kind.model_validate(content)
    except (ValueError, AttributeError, KeyError, TypeError, ValidationError):
        raise broken from None
    if hashlib.sha256(canonical_json(content)).hexdigest() != stated or seal(document) != data:
        raise broken
    return document


def is_ours(name: str) -> bool:
    """Whether a file has a name that only this store gives: a shard or a receipt."""
    return _OURS.fullmatch(name) is not None


def is_left_over(name: str) -> bool:
    """Whether a file is what a killed writer of this store left behind."""
    return _LEFT.fullmatch(name) is not None


def holds_dataset(folder: Folder) -> bool:
    """Whether the folder is a dataset of ours, finished or not: it has a file of ours, or a manifest that says so."""
    names = folder.names()
    if any(is_ours(name) or is_left_over(name) for name in names):
        return True
    if MANIFEST not in names:
        return False
    try:
        content = json.loads(folder.read(MANIFEST))
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("kind") == "manifest" and "plan" in content


def receipt_name(shard: str) -> str:
    """The receipt's file name beside its shard."""
    return shard.removesuffix(SHARD_SUFFIX) + RECEIPT_SUFFIX


def read_receipt(folder: Folder, shard: str) -> Receipt:
    """The receipt of `shard`. TM901: none; TM508: broken."""
    name = receipt_name(shard)
    return unseal(Receipt, folder.read(name), where=f"{folder.path}/{name}")


def read_manifest(folder: Folder) -> tuple[Manifest, str]:
    """The manifest and its sha256. TM931: no dataset here; TM508: unfinished or broken."""
    if folder.size(MANIFEST) is None:
        names = folder.names()
        if any(is_ours(name) or is_left_over(name) for name in names):
            what = "shards but no manifest: the conversion did not finish"
            raise StoreError(
                "TM508", where=folder.path, what=what, fix="run the same convert command again, it continues"
            )
        fix = "give a folder that convert wrote"
        raise StoreError("TM931", where=folder.path, what="no manifest.json here", fix=fix)
    data = folder.read(MANIFEST)
    return unseal(Manifest, data, where=f"{folder.path}/{MANIFEST}"), hashlib.sha256(data).hexdigest()


def shard_entry(receipt: Receipt) -> Shard:
    """The manifest's line about a committed shard."""
    counts = receipt.counts
    return Shard(name=receipt.name, bytes=receipt.bytes, sha256=receipt.sha256, rows=counts.rows, tokens=counts.tokens,
                 sampled=counts.sampled, receipt=hashlib.sha256(seal(receipt)).hexdigest())  # fmt: skip


def check_size(folder: Folder, shard: Shard) -> None:
    """TM508 unless the shard is there with the size that the manifest states; reads nothing."""
    size, where = folder.size(shard.name), f"{folder.path}/{shard.name}"
    if size is None:
        raise StoreError("TM508", where=where, what="shard is missing", fix="run the same convert command again")
    if size != shard.bytes:
        what = f"{size} bytes where the manifest states {shard.bytes}"
        raise StoreError("TM508", where=where, what=what, fix="delete the shard and run the same convert command again")


def verify(dataset: Dataset | str) -> list[Finding]:
    """TM508 findings of a dataset: hashes every shard, receipt and manifest. Foreign datasets have none.

    Any changed, missing or additional byte of any file that belongs to the dataset is found. A shard opened by its own
    path is compared with the receipt beside it; where there is none, nothing states what it should be.
    """
    paths = (dataset,) if isinstance(dataset, str) else dataset.paths if dataset.kind == "tracemask" else ()
    findings: list[Finding] = []
    for path in paths:
        if path.endswith(SHARD_SUFFIX):
            findings += _verify_alone(path)
        else:
            findings += _verify_folder(open_folder(path))
    return findings


def _verify_alone(path: str) -> list[Finding]:
    """A shard opened by its own path, against the receipt beside it; without one, nothing states its hash."""
    parent, _, name = path.rpartition("/")
    folder = open_folder(parent or ".")
    if folder.size(receipt_name(name)) is None:
        return []
    try:
        receipt = read_receipt(folder, name)
    except TracemaskError as error:
        return [_corrupt(error.where, error.what)]
    if folder.size(name) != receipt.bytes or folder.sha256(name) != receipt.sha256:
        return [_corrupt(path, "bytes differ from the sha256 in the receipt")]
    return []


def _verify_folder(folder: Folder) -> list[Finding]:
    try:
        manifest, _ = read_manifest(folder)
    except TracemaskError as error:
        return [_corrupt(error.where, error.what)]
    findings: list[Finding] = []
    known = {MANIFEST}
    for shard in manifest.shards:
        known |= {shard.name, receipt_name(shard.name)}
        findings += _verify_shard(folder, shard)
    for name in folder.names():
        if name not in known and (name.endswith((SHARD_SUFFIX, RECEIPT_SUFFIX)) or is_left_over(name)):
            findings.append(_corrupt(f"{folder.path}/{name}", "not listed in the manifest"))
    return findings


def _verify_shard(folder: Folder, shard: Shard) -> list[Finding]:
    findings = []
    try:
        check_size(folder, shard)
        if folder.sha256(shard.name) != shard.sha256:
            findings.append(_corrupt(f"{folder.path}/{shard.name}", "bytes differ from the sha256 in the manifest"))
    except TracemaskError as error:
        findings.append(_corrupt(error.where, error.what))
    name = receipt_name(shard.name)
    if folder.size(name) is None:
        findings.append(_corrupt(f"{folder.path}/{name}", "receipt is missing"))
    elif folder.sha256(name) != shard.receipt:
        findings.append(_corrupt(f"{folder.path}/{name}", "receipt differs from the sha256 in the manifest"))
    return findings


def _corrupt(where: str, what: str) -> Finding:
    return Finding("TM508", what, Place(path=where))
