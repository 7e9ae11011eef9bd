"""Sample logs of lm-evaluation-harness, written by lm-eval 0.4.13 with its ``dummy`` model."""

import json
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

FOLDER = Path(__file__).parents[1] / "fixtures" / "lm_eval"
DATE = "2026-11-18T20-16-16.859744"


def find_log(task):
    return FOLDER / f"samples_tiny_{task}_{DATE}.jsonl"


def read_samples(task):
    return [json.loads(line) for line in find_log(task).read_text().splitlines()]


def change_log(tmp_path, change, task="science"):
    samples = read_samples(task)
    for sample in samples:
        change(sample)
    path = tmp_path / f"samples_{task}_{DATE}.jsonl"
    path.write_text("\n".join(map(json.dumps, samples)))
    return path


@pytest.mark.parametrize("task", ["science", "facts", "pronoun"])
def test_likelihoods_are_options_and_agree_with_the_logged_accuracy(task):
    read, columns = Predictions.read_with_columns(find_log(task), ["task"])
    samples = read_samples(task)
    assert read.is_logits
    assert set(columns["task"]) == {f"tiny_{task}"}
    assert read.ids.tolist() == [f"tiny_{task}/{sample['doc_id']}" for sample in samples]
    assert read.clusters.tolist() == [sample["doc_hash"] for sample in samples]
    options = {"science": [4, 3, 2, 5, 3, 4], "facts": [2] * 4, "pronoun": [2] * 3}[task]
    assert read.num_options.tolist() == options
    for row, count, sample in zip(read.array, options, samples, strict=True):
        logged = [float(pair[0]) for pair in sample["filtered_resps"]]
        assert row[:count].tolist() == logged[:count]
        assert (row[count:] == -np.inf).all()
    correct = read.array.argmax(1) == read.labels
    assert correct.tolist() == [sample["acc"] == 1 for sample in samples]


def test_answers_are_those_of_the_data():
    assert Predictions.read(find_log("science")).labels.tolist() == [1, 0, 1, 1, 0, 0]
    assert Predictions.read(find_log("facts")).labels.tolist() == [1, 0, 1, 0]
    assert Predictions.read(find_log("pronoun")).labels.tolist() == [1, 0, 1]


def test_normalised_likelihoods_agree_with_acc_norm():
    read = Predictions.read(find_log("science"), normalise="length")
    samples = read_samples("science")
    correct = read.array.argmax(1) == read.labels
    assert correct.tolist() == [sample["acc_norm"] == 1 for sample in samples]
    assert correct.tolist() != [sample["acc"] == 1 for sample in samples]
    first = samples[0]
    lengths = [len(choice) for choice in first["doc"]["choices"]]
    logged = [float(pair[0]) for pair in first["filtered_resps"]]
    assert np.allclose(read.array[0, :4], np.divide(logged, lengths), rtol=1e-15)
    with pytest.raises(InputError, match="normalise must be one of none, length, bytes"):
        Predictions.read(find_log("science"), normalise="tokens")
    with pytest.raises(InputError, match="options in the contexts"):
        Predictions.read(find_log("pronoun"), normalise="length")


def test_a_delimiter_that_is_no_space_is_found_by_acc_norm(tmp_path):
    def glue(sample):
        for argument in sample["arguments"].values():
            argument["arg_1"] = "\n\n" + argument["arg_1"].strip()

    given = Predictions.read(find_log("science"), normalise="bytes")
    read = Predictions.read(change_log(tmp_path, glue), normalise="length")
    correct = read.array.argmax(1) == read.labels
    assert correct.tolist() == [sample["acc_norm"] == 1 for sample in read_samples("science")]
    assert given.num_rows == read.num_rows


def test_several_tasks_are_one_set_with_tasks_as_groups_and_documents_as_clusters():
    files = [find_log("science"), find_log("facts")]
    read, columns = Predictions.read_with_columns(files, ["task", "question"])
    assert read.num_rows == 10
    assert columns["task"].tolist() == ["tiny_science"] * 6 + ["tiny_facts"] * 4
    assert columns["question"][6] == "Is ice cold?"
    with pytest.raises(InputError, match=r"no column is called 'subject'.*'task', 'question'"):
        Predictions.read_with_columns(files, ["subject"])


def test_older_logs_with_plain_numbers_and_lists_are_read(tmp_path):
    def make_old(sample):
        sample["arguments"] = [list(each.values()) for each in sample["arguments"].values()]
        sample["filtered_resps"] = [[float(ll), greedy] for ll, greedy in sample["filtered_resps"]]

    old, new = (
        Predictions.read(change_log(tmp_path, make_old)),
        Predictions.read(find_log("science")),
    )
    assert np.array_equal(old.array, new.array)
    assert old.labels.tolist() == new.labels.tolist()


def test_logs_that_cannot_be_evaluated_say_why(tmp_path):
    with pytest.raises(InputError, match=r"'tiny_generate': its samples are generated"):
        Predictions.read(find_log("generate"))
    with pytest.raises(InputError, match="'science': the target '9' in line 1 is neither"):
        Predictions.read(change_log(tmp_path, lambda sample: sample.update(target="9")))
    with pytest.warns(UserWarning, match="logged acc is not what"):
        Predictions.read(change_log(tmp_path, lambda sample: sample.update(acc=1 - sample["acc"])))
    broken = change_log(tmp_path, lambda sample: sample.update(filtered_resps=[[1, 2]]))
    with pytest.raises(InputError, match="line 1 has 1 responses for 4 requests"):
        Predictions.read(broken)
    (tmp_path / "again").mkdir()
    again = change_log(tmp_path / "again", lambda sample: None)
    with pytest.raises(InputError, match="task 'science' is in"):
        Predictions.read([again, change_log(tmp_path, lambda sample: None)])
    (tmp_path / "plain.jsonl").write_text('{"prob": 0.5, "label": 1}\n')
    with pytest.raises(InputError, match=r"plain\.jsonl are not"):
        Predictions.read([find_log("science"), tmp_path / "plain.jsonl"])
    with pytest.raises(InputError, match="normalise= is for sample logs"):
        Predictions.read(tmp_path / "plain.jsonl", normalise="length")
