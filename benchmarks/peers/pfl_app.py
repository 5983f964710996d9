"""pfl-research's simulation of the same work, put together as its own image benchmark is."""

from __future__ import annotations

import types
from typing import Any

import torch
from peers.workload import Work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


def loss(self: nn.Module, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
    return nn.functional.cross_entropy(self(inputs), targets)


def metrics(self: nn.Module, inputs: Tensor, targets: Tensor, eval: bool = True) -> dict[str, Any]:
    with torch.no_grad():
        total = nn.functional.cross_entropy(self(inputs), targets, reduction="sum")
    return {"loss": Weighted(float(total), len(inputs))}


class Pfl:
    """`rounds(n)` trains n rounds more. PFL_PYTORCH_DEVICE says where, as pfl has it."""

    def __init__(self, work: Work, device: str = "cpu"):
        self.work, self.done = work, 0
        self.module = work.module()
        self.module.loss = types.MethodType(loss, self.module)
        self.module.metrics = types.MethodType(metrics, self.module)
        central = torch.optim.SGD(self.module.parameters(), 1.0)
        self.model = PyTorchModel(model=self.module, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
        users = {str(n): [x.to(device), y.to(device)] for n, (x, y) in enumerate(work.data())}
        data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
        self.backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()])
        self.algorithm = FederatedAveraging()

    def rounds(self, count: int) -> None:
        self.done += count
        self.algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=self.done,
                evaluation_frequency=10**9,  # only in the first round, which is not timed
                train_cohort_size=self.work.selected,
                val_cohort_size=0,
            ),
            backend=self.backend,
            model=self.model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=self.work.lr, local_batch_size=self.work.batch
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[],
            send_metrics_to_platform=False,
        )
