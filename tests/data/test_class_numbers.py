"""Data sets that say how they number their classes do it alike, or are refused: a wrong number is a wrong label."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import fedkeel as fk
from fedkeel.data.class_numbers import find_class_numbers


class Pictures(Dataset):
    """What torchvision's ImageFolder says of a folder: it numbers the classes that lie in it."""

    def __init__(self, *classes, target_transform=None):
        self.class_to_idx = {name: number for number, name in enumerate(classes)}
        self.target_transform = target_transform

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i >= 6:
            raise IndexError
        label = i % len(self.class_to_idx)
        return torch.full((3,), float(i)), label if self.target_transform is None else self.target_transform(label)


BOTH, WELL = Pictures("ill", "well"), Pictures("well")


def problem(*clients, **others):
    return fk.Problem(model=torch.nn.Linear(3, 2), loss=cross_entropy, clients=list(clients), **others)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: data,
        lambda data: Subset(data, [0, 1]),
        lambda data: ConcatDataset([data]),
        lambda data: DataLoader(Subset(data, [0, 1])),
    ],
)
def test_a_class_of_two_numbers_is_refused(wrap):
    with pytest.raises(fk.DataError, match="class well is number 0 in client 1, and number 1 in client 0") as error:
        problem(BOTH, wrap(WELL))
    assert "target_transform" in error.value.hint


def test_a_number_of_two_classes_is_refused():
    with pytest.raises(fk.DataError, match="number 0 is class fair in the test set, and class ill in client 0"):
        problem(BOTH, BOTH, test=Pictures("fair"))


def test_data_that_lack_the_last_classes_and_those_that_number_them_themselves_are_taken():
    _, lacking = problem(BOTH, Pictures("ill"), test=BOTH).clients
    assert lacking[1].tolist() == [0] * 6
    _, own = problem(BOTH, Pictures("well", target_transform=lambda label: 1)).clients
    assert own[1].tolist() == [1] * 6


def test_columns_of_classes_are_compared_too():
    datasets = pytest.importorskip("datasets", reason="the extra fedkeel[download] is not installed")

    def rows(*names):
        kinds = {"x": datasets.Sequence(datasets.Value("float32")), "diagnosis": datasets.ClassLabel(names=list(names))}
        return datasets.Dataset.from_dict({"x": [[1.0]] * 2, "diagnosis": [0, 1]}, features=datasets.Features(kinds))

    with pytest.raises(fk.DataError, match="class well is number 0 in client 1, and number 1 in client 0"):
        problem(rows("ill", "well"), rows("well", "ill"), label="diagnosis")
    assert not list(find_class_numbers(rows("ill", "well")))  # no column of that name is a label
