from __future__ import annotations

import hashlib
import json

from weft.interop.export_record import ExportCheck, write_export_record


def test_record_has_checksums_versions_and_the_check(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.bin").write_bytes(b"weights")
    check = ExportCheck(1e-6, [(1, 3), (2, 7)])
    for _ in range(2):  # written twice, it does not contain itself
        write_export_record(tmp_path, run=tmp_path / "r", name="onnx", check=check, call="f()", packages=["torch"])
    record = json.loads((tmp_path / "export.json").read_text())
    assert record["files"] == {"sub/model.bin": {"size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
    assert record["check"] == {"max_difference": 1e-6, "shapes": [[1, 3], [2, 7]]}
    assert (record["format"], record["run"], record["call"]) == ("onnx", "r", "f()")
    assert set(record["versions"]) == {"weft", "torch"}


def test_record_without_check(tmp_path):
    write_export_record(tmp_path, run=tmp_path, name="onnx", check=None, call="", packages=[])
    assert json.loads((tmp_path / "export.json").read_text())["check"] is None
