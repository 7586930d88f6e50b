"""Fine-tuning on any data. Settings that depend on the data are not set here, and chosen from the data.

`vitreous finetune DATA --from WEIGHTS --recipe fast` is `vitreous train DATA --from WEIGHTS --recipe finetune_fast`.
"""

from vitreous.training.config import TrainConfig


def finetune_paper() -> TrainConfig:
    """96.8% of CIFAR-10 from DeiT-Ti at 224 px, a tenth of the steps (one seed), in 2.4 minutes, on one H200.

    `vitreous finetune photos --from B_16.npz --recipe paper --size 384`: any; up to 1,000
    images are trained as VTAB, up to 20,000 as Pets and Flowers, up to 200,000 as CIFAR, more as ImageNet.

    Measured on the 10,000 test images of CIFAR-10; weights of the last step, learning rate selected on 1,000
    training images.

    Table 4 of the paper: SGD with momentum, batches of 512, 2,500, 500, 10,000 or 20,000 steps, crops and flips. The
    learning rate is the best of four on a development split (VTAB: 0.01); the final run uses all training images.
    `--candidate-duration 20%` shortens the search. The paper's best runs on ImageNet use Polyak averaging: `--ema
    0.9999`.
    """
    return TrainConfig().with_(
        rules="paper",
        val_fraction=0.0,
        dropout=0.0,
        stochastic_depth=0.0,
        batch_size=512,
        optimiser="sgd",
        momentum=0.9,
        weight_decay=0.0,
        clip=1.0,
        ema=0.0,
        schedule="cosine",
        label_smoothing=0.0,
        class_weights="none",
        crop=0.05,
        aspect=4 / 3,
        shift=0.0,
        flip=True,
        randaugment=0,
        magnitude=0.0,
        three_augment=False,
        jitter=0.0,
        erase=0.0,
        mixup=0.0,
        cutmix=0.0,
    )


def finetune_fast() -> TrainConfig:
    """97.5% of CIFAR-10 from DeiT-Ti at 224 px (one seed), in 2.1 minutes of training, on one H200.

    `vitreous finetune photos --from vitreous-mini --recipe fast`: any; its size determines epochs, batch and
    augmentation.

    Measured on the 10,000 test images of CIFAR-10; weights selected by top-1 on 5,000 validation images.

    AdamW with layer-wise learning-rate decay: lower layers, which detect edges and textures, change less.
    """
    return TrainConfig().with_(
        dropout=0.0,
        optimiser="adamw",
        layer_decay=0.75,
        weight_decay=0.05,
        schedule="cosine",
        warmup="10%",
        mixup=0.0,
        cutmix=0.0,
    )


def finetune_linear() -> TrainConfig:
    """76.2% of Fashion-MNIST from 500 images and vitreous-mini (one seed), in 5 minutes, on one CPU core.

    `vitreous finetune photos --from vitreous-mini --recipe linear`: any; its size determines epochs, batch and crops.

    Measured on 1,000 test images of Fashion-MNIST; weights selected by top-1 on 100 of the 500 training images.

    Only the new head is trained, which is the least likely to overfit a few images.
    """
    return TrainConfig().with_(
        freeze=("!head.*",),
        dropout=0.0,
        stochastic_depth=0.0,
        optimiser="adamw",
        lr=3e-2,
        weight_decay=0.0,
        schedule="cosine",
        warmup="10%",
        label_smoothing=0.0,
        class_weights="none",
        randaugment=0,
        magnitude=0.0,
        jitter=0.0,
        mixup=0.0,
        cutmix=0.0,
    )


def finetune_lora() -> TrainConfig:
    """84.1% of Fashion-MNIST from 500 images and vitreous-mini (one seed), in 16 minutes, on one busy CPU core.

    `vitreous finetune photos --from vitreous-mini --recipe lora`: any; its size determines epochs, batch and
    augmentation.

    Measured on 1,000 test images of Fashion-MNIST; weights selected by top-1 on 100 of the 500 training images.

    Adapters of rank 8 on all weight matrices of the encoder, and the head: the optimiser state is a fiftieth of that of
    full fine-tuning. The saved models have the adapters merged into their weights.
    """
    return TrainConfig().with_(
        lora=8,
        lora_alpha=16.0,
        dropout=0.0,
        optimiser="adamw",
        lr=3e-3,
        weight_decay=0.0,
        schedule="cosine",
        warmup="10%",
        mixup=0.0,
        cutmix=0.0,
    )
