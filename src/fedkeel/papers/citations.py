"""BibTeX of every paper whose idea is a method here, by the keys of `Method.papers`."""

from __future__ import annotations

import re

CITATIONS: dict[str, str] = {
    "fedavg": """@inproceedings{fedavg,
  author = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Aguera y Arcas, Blaise},
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year = {2017}
}""",
    "fedavgm": """@misc{fedavgm,
  author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew},
  title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
  eprint = {1909.06335},
  archiveprefix = {arXiv},
  year = {2019}
}""",
    "fedadam": """@misc{fedadam,
  author = {Reddi, Sashank and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and Konečný,
    Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
  title = {Adaptive Federated Optimization},
  eprint = {2003.00295},
  archiveprefix = {arXiv},
  year = {2020}
}""",
    "fedprox": """@inproceedings{fedprox,
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith,
    Virginia},
  title = {Federated Optimization in Heterogeneous Networks},
  booktitle = {Proceedings of Machine Learning and Systems},
  year = {2020}
}""",
    "scaffold": """@inproceedings{scaffold,
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and Stich, Sebastian
    U. and Suresh, Ananda Theertha},
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  booktitle = {International Conference on Machine Learning},
  year = {2020}
}""",
    "feddyn": """@inproceedings{feddyn,
  author = {Acar, D. A. E. and Zhao, Y. and Matas, R. and Mattina, M. and Whatmough, P. and Saligrama, V.},
  title = {Federated Learning Based on Dynamic Regularization},
  booktitle = {International Conference on Learning Representations},
  year = {2021}
}""",
    "fedcm": """@misc{fedcm,
  author = {Xu, Jing and Wang, Sen and Wang, Liwei and Yao, Andrew Chi-Chih},
  title = {{FedCM}: Federated Learning with Client-Level Momentum},
  eprint = {2106.10874},
  archiveprefix = {arXiv},
  year = {2021}
}""",
    "feddc": """@inproceedings{feddc,
  author = {Gao, L. and Fu, H. and Li, L. and Chen, Y. and Xu, M. and Xu, C.-Z.},
  title = {{FedDC}: Federated Learning with Non-{IID} Data via Local Drift Decoupling and Correction},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2022}
}""",
    "fedlc": """@inproceedings{fedlc,
  author = {Zhang, J. and Li, Z. and Li, B. and Xu, J. and Wu, S. and Ding, S. and Wu, C.},
  title = {Federated Learning with Label Distribution Skew via Logits Calibration},
  booktitle = {International Conference on Machine Learning},
  year = {2022}
}""",
    "sam": """@inproceedings{sam,
  author = {Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam},
  title = {Sharpness-Aware Minimization for Efficiently Improving Generalization},
  booktitle = {International Conference on Learning Representations},
  year = {2021}
}""",
    "asam": """@inproceedings{asam,
  author = {Kwon, Jungmin and Kim, Jeongseop and Park, Hyunseo and Choi, In Kwon},
  title = {{ASAM}: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks},
  booktitle = {International Conference on Machine Learning},
  year = {2021}
}""",
    "fedasam": """@inproceedings{fedasam,
  author = {Caldarola, Debora and Caputo, Barbara and Ciccone, Marco},
  title = {Improving Generalization in Federated Learning by Seeking Flat Minima},
  booktitle = {European Conference on Computer Vision},
  year = {2022}
}""",
    "fedsam": """@inproceedings{fedsam,
  author = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  title = {Generalized Federated Learning via Sharpness Aware Minimization},
  booktitle = {International Conference on Machine Learning},
  year = {2022}
}""",
    "fedgamma": """@article{fedgamma,
  author = {Dai, Rong and Yang, Xun and Sun, Yan and Shen, Li and Tian, Xinmei and Wang, Meng and Zhang, Yongdong},
  title = {{FedGAMMA}: Federated Learning with Global Sharpness-Aware Minimization},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  doi = {10.1109/TNNLS.2023.3304453},
  year = {2024}
}""",
    "fedspeed": """@misc{fedspeed,
  author = {Sun, Yan and Shen, Li and Huang, Tiansheng and Ding, Liang and Tao, Dacheng},
  title = {{FedSpeed}: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy},
  eprint = {2302.10429},
  archiveprefix = {arXiv},
  year = {2023}
}""",
    "fedsmoo": """@inproceedings{fedsmoo,
  author = {Sun, Yan and Shen, Li and Chen, Shixiang and Ding, Liang and Tao, Dacheng},
  title = {Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global Consistency
    and Smooth Landscape},
  booktitle = {International Conference on Machine Learning},
  year = {2023}
}""",
    "fedlesam": """@inproceedings{fedlesam,
  author = {Fan, Ziqing and Hu, Shengchao and Yao, Jiangchao and Niu, Gang and Zhang, Ya and Sugiyama, Masashi and
    Wang, Yanfeng},
  title = {Locally Estimated Global Perturbations are Better than Local Perturbations for Federated Sharpness-Aware
    Minimization},
  booktitle = {International Conference on Machine Learning},
  year = {2024}
}""",
    "fedgloss": """@inproceedings{fedgloss,
  author = {Caldarola, Debora and Cagnasso, Pietro and Caputo, Barbara and Ciccone, Marco},
  title = {Beyond Local Sharpness: Communication-Efficient Global Sharpness-Aware Minimization for Federated
    Learning},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2025}
}""",
    "fedsol": """@inproceedings{fedsol,
  author = {Lee, Gihun and Jeong, Minchan and Kim, Sangmook and Oh, Jaehoon and Yun, Se-Young},
  title = {{FedSOL}: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2024}
}""",
    "plgu": """@inproceedings{plgu,
  author = {Qu, Zhe and Li, Xingyu and Han, Xiao and Duan, Rui and Shen, Chengchao and Chen, Lixing},
  title = {How to Prevent the Poor Performance Clients for Personalized Federated Learning?},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2023}
}""",
    "fedfft": """@unpublished{fedfft,
  author = {{Anonymous authors}},
  title = {{FedFFT}: Taming Client Drift in Federated {SAM} via Spectral Perturbation Filtering},
  note = {Paper under double-blind review}
}""",
    "specgradfilter": """@unpublished{specgradfilter,
  author = {Yuan, Liyang and Yang, Yibo and Guo, Dandan and Richtárik, Peter and Lin, Zhouchen},
  title = {{SpecGradFilter}: A Spectral Gradient Filtering Framework for Taming Federated Heterogeneity},
  note = {Manuscript}
}""",
    "fedscam": """@misc{fedscam,
  author = {Rahil, Sameer and Ahmad, Zain Abdullah and Asif, Talha},
  title = {{FedSCAM}: Scam-resistant {SAM} for Robust Federated Optimization in Heterogeneous Environments},
  note = {Preprint},
  year = {2025}
}""",
    "fedwmsam": """@misc{fedwmsam,
  author = {Li, Tianle and Huang, Yongzhi and Jiang, Linshan and Liu, Chang and Xie, Qipeng and Du, Wenfeng and
    Wang, Lu and Wu, Kaishun},
  title = {A Fast and Flat Federated Learning Method via Weighted Momentum and Sharpness-Aware Minimization},
  eprint = {2511.22080},
  archiveprefix = {arXiv},
  year = {2025}
}""",
    "fedfsa": """@inproceedings{fedfsa,
  author = {Xing, Xinda and Zhan, Qiugang and Xie, Xiurui and Yang, Yuning and Wang, Qiang and Liu, Guisong},
  title = {Flexible Sharpness-Aware Personalized Federated Learning},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2025}
}""",
    "qfedavg": """@inproceedings{qfedavg,
  author = {Li, T. and Sanjabi, M. and Beirami, A. and Smith, V.},
  title = {Fair Resource Allocation in Federated Learning},
  booktitle = {International Conference on Learning Representations},
  year = {2020}
}""",
    "fedlw": """@misc{fedlw,
  author = {Yao, C. and Wang, W.},
  title = {A Loss-Based Weighted Aggregation Method for Federated Learning with Heterogeneous Computing Resources},
  doi = {10.1145/3735358.3737773},
  year = {2025}
}""",
    "fednolowe": """@article{fednolowe,
  author = {Le, D.-D. and Huynh, T.-N. and Tran, A.-K. and Dao, M.-S. and Bao, P. T.},
  title = {{FedNolowe}: A Normalized Loss-Based Weighted Aggregation Strategy for Robust Federated Learning in
    Heterogeneous Environments},
  journal = {PLOS ONE},
  year = {2025}
}""",
    "feddisco": """@inproceedings{feddisco,
  author = {Ye, Rui and Xu, Mingkai and Wang, Jianyu and Xu, Chenxin and Chen, Siheng and Wang, Yanfeng},
  title = {{FedDisco}: Federated Learning with Discrepancy-Aware Collaboration},
  booktitle = {International Conference on Machine Learning},
  year = {2023}
}""",
    "fedawa": """@inproceedings{fedawa,
  author = {Shi, Changlong and Zhao, He and Zhang, Bingjie and Zhou, Mingyuan and Guo, Dandan and Chang, Yi},
  title = {{FedAWA}: Adaptive Optimization of Aggregation Weights in Federated Learning Using Client Vectors},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2025}
}""",
    "fedlws": """@inproceedings{fedlws,
  author = {Shi, C. and Li, J. and Zhao, H. and Guo, D. and Chang, Y.},
  title = {{FedLWS}: Federated Learning with Adaptive Layer-wise Weight Shrinking},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}""",
    "fedlaw": """@inproceedings{fedlaw,
  author = {Li, Zexi and Lin, Tao and Shang, Xinyi and Wu, Chao},
  title = {Revisiting Weighted Aggregation in Federated Learning with Neural Networks},
  booktitle = {International Conference on Machine Learning},
  year = {2023}
}""",
    "fedper": """@misc{fedper,
  author = {Arivazhagan, M. G. and Aggarwal, V. and Singh, A. K. and Choudhary, S.},
  title = {Federated Learning with Personalization Layers},
  eprint = {1912.00818},
  archiveprefix = {arXiv},
  year = {2019}
}""",
    "fedala": """@inproceedings{fedala,
  author = {Zhang, J. and Hua, Y. and Wang, H. and Song, T. and Xue, Z. and Ma, R. and Guan, H.},
  title = {{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023}
}""",
    "fedcr": """@inproceedings{fedcr,
  author = {Zhang, H. and Li, C. and Dai, W. and Zou, J. and Xiong, H.},
  title = {{FedCR}: Personalized Federated Learning Based on Across-Client Common Representation with Conditional
    Mutual Information Regularization},
  booktitle = {International Conference on Machine Learning},
  year = {2023}
}""",
    "ditto": """@inproceedings{ditto,
  author = {Li, T. and Hu, S. and Beirami, A. and Smith, V.},
  title = {Ditto: Fair and Robust Federated Learning Through Personalization},
  booktitle = {International Conference on Machine Learning},
  year = {2021}
}""",
}


def authors(key: str) -> str:
    """`McMahan et al. 2017`: how a text refers to a paper."""
    entry = CITATIONS[key]
    names = field(entry, "author").split(" and ")
    last = [name.split(",")[0] for name in names]
    who = last[0] if len(last) == 1 else " and ".join(last) if len(last) == 2 else f"{last[0]} et al."
    return f"{who} {field(entry, 'year')}".strip()


def title(key: str) -> str:
    return re.sub(r"[{}]", "", field(CITATIONS[key], "title"))


def field(entry: str, name: str) -> str:
    """One field of a BibTeX entry, on one line; empty when the entry has none."""
    found = re.search(rf"^\s*{name} = \{{(.*?)\}},?$", entry, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()).strip("{}") if found else ""
