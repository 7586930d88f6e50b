"""Does dropout help? An experiment of your own: vitreous reproduce examples/dropout.py:EXPERIMENT"""

from matplotlib.figure import Figure

from vitreous.experiments.grid.experiment import Cell, Experiment
from vitreous.experiments.grid.plots import dot_rows
from vitreous.experiments.grid.records import CellRecords, measure_label
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable

RATES = (0.0, 0.1)


class DropoutExperiment(Experiment):
    title = "dropout against none"
    place = "Table 3"
    conclusion = "Dropout of 0.1 improves the accuracy."

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell(
                factors={"dropout": rate},
                measures=setting.measures(),
                seed=seed,
                config=setting.pretraining(seed, dropout=rate),
            )
            for rate in RATES
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        names = records.measured_names
        rows = [(f"{rate:g}", *(records.summary(name, dropout=rate) for name in names)) for rate in RATES]
        return ResultTable(("dropout", *records.percent_columns), tuple(rows))

    def verdict(self, records: CellRecords) -> Verdict:
        without, with_dropout = (records.by_seed(records.main_measure, dropout=rate) for rate in RATES)
        return judge([Claim("dropout is better than none", paired_difference(with_dropout, without))])

    def draw(self, records: CellRecords) -> Figure:
        rows = [(f"{rate:g}", list(records.by_seed(records.main_measure, dropout=rate).values())) for rate in RATES]
        return dot_rows(rows, measure_label(records.main_measure))


EXPERIMENT = DropoutExperiment()
