"""`allpull lab`: what it lists, writes and refuses."""

import json


def test_it_lists_the_labs(run_cli):
    done = run_cli("lab")
    assert done.returncode == 0
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["allpull", "lab", "sgd"],
        ["allpull", "lab", "ring"],
        ["allpull", "lab", "straggler"],
        ["allpull", "lab", "overlap"],
        ["allpull", "lab", "batch"],
    ]


def test_facts_and_page(run_here, tmp_path):
    done = run_here("lab", "sgd", "--batch", "1000", "--epochs", "5", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["schema"].startswith("allpull.lab/")
    assert len(facts["path"]) == 6
    assert (tmp_path / "lab-sgd.html").read_text("utf-8").count("<section") == 3


def test_a_batch_that_cannot_be_divided(run_cli, tmp_path):
    done = run_cli("lab", "sgd", "-n", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "allpull: a batch of 100 cannot be divided among 3 ranks",
        "hint: --batch 99, or --share weak",
    ]
    assert not list(tmp_path.iterdir())


def test_sizes_that_are_no_list_and_one_size(run_here, tmp_path):
    for given, sentence in (("1,x", "--buckets: '1,x' is not a list of sizes"), ("25", "--buckets: 2 to 12")):
        done = run_here("lab", "overlap", "--buckets", given, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"allpull: {sentence}")
        assert not list(tmp_path.iterdir())


def test_a_straggler_among_too_few_ranks(run_here, tmp_path):
    done = run_here("lab", "straggler", "-n", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("allpull: -n 2: this machine has ")
    assert "hint: 3 to " in done.stderr
