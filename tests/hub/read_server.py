"""Reads the server of the tests with huggingface_hub and with the program: both must see the same repository.

The tests of lib/source/hub run against that server, so it must speak the API that the real client expects.
Arguments: the server (tests/hub/serve.cpp), the program.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

REPO = "org/name"
TOKEN = "hf_test"


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r}, found {found!r}")


def expect_error(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: expected {kind.__name__}, found none")


def run(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def main():
    server, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "source")
        run(program, "synth", str(source), "--shape", "tiny", "--quiet", "--max-shard-size", "100KB")
        with subprocess.Popen([server, REPO, str(source), TOKEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as serving:
            try:
                endpoint, commit = serving.stdout.readline().split()
                # Read when the module is imported.
                os.environ.update(HF_ENDPOINT=endpoint, HF_HOME=str(pathlib.Path(scratch, "home")), HF_TOKEN=TOKEN,
                                  no_proxy="127.0.0.1", HF_HUB_DISABLE_TELEMETRY="1")
                read(program, source, endpoint, commit)
            finally:
                serving.stdin.close()


def read(program, source, endpoint, commit):
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    files = {p.relative_to(source).as_posix(): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    api = hub.HfApi(endpoint=endpoint)
    info = api.model_info(REPO, revision="main", files_metadata=True)
    check("commit", info.sha, commit)
    check("names", sorted(s.rfilename for s in info.siblings), sorted(files))
    weights = 0
    for sibling in info.siblings:
        contents = files[sibling.rfilename]
        check(f"{sibling.rfilename}: size", sibling.size, len(contents))
        digest = hashlib.sha256(contents).hexdigest()
        url = hub.hf_hub_url(REPO, sibling.rfilename, revision=commit, endpoint=endpoint)
        metadata = hub.get_hf_file_metadata(url, token=TOKEN)
        check(f"{sibling.rfilename}: size of its metadata", metadata.size, len(contents))
        check(f"{sibling.rfilename}: commit", metadata.commit_hash, commit)
        if sibling.rfilename.endswith(".safetensors"):
            weights += 1
            check(f"{sibling.rfilename}: SHA-256", sibling.lfs.sha256, digest)
            check(f"{sibling.rfilename}: ETag", metadata.etag, digest)
        else:
            check(f"{sibling.rfilename}: ETag", metadata.etag, sibling.blob_id)
        path = hub.hf_hub_download(REPO, sibling.rfilename, endpoint=endpoint)
        check(f"{sibling.rfilename}: contents", pathlib.Path(path).read_bytes(), contents)

    expect_error("another revision", RevisionNotFoundError, lambda: api.model_info(REPO, revision="v9"))
    expect_error("another repository", RepositoryNotFoundError, lambda: api.model_info("org/other"))
    expect_error("another file", EntryNotFoundError, lambda: hub.hf_hub_download(REPO, "none", endpoint=endpoint))
    # Of 401 the client says that there is no repository only where the endpoint is https.
    expect_error("no token", HfHubHTTPError, lambda: api.model_info(REPO, token=False))

    # The same headers by the program.
    theirs = api.get_safetensors_metadata(REPO)
    ours = json.loads(run(program, "inspect", f"hf://{REPO}", "--json"))
    check("files of weights", ours["files"], len(theirs.files_metadata))
    check("tensors", ours["tensor_count"], len(theirs.weight_map))
    print(f"{len(files)} files, {weights} of them of weights, {ours['tensor_count']} tensors: "
          f"huggingface_hub {hub.__version__} and twofour read the same")


if __name__ == "__main__":
    main()
