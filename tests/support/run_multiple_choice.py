"""Fine-tune an encoder to choose answers."""

from multiple_choice import MultipleChoice

from hf_domain.training.fine_tuning import fine_tune_from_flags, list_arguments

ARGUMENTS = list_arguments(MultipleChoice)


def main():
    fine_tune_from_flags(MultipleChoice, __doc__)
