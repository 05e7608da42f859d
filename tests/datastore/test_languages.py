"""The language that is recognized decides the analyzer: a German text is not stemmed as an English one."""

import pytest

from hf_domain.datastore.analysis import choose_analyzer
from hf_domain.datastore.languages import CJK, ENGLISH, LATIN, OTHER, UNKNOWN, recognize_language

TEXTS = {
    "Participants were asked to rate the severity of pain, and this was repeated for each of the groups.": ENGLISH,
    "Der Mieter ist verpflichtet, die Miete bis zum dritten Werktag zu zahlen und den Vertrag zu achten.": LATIN,
    "Le locataire est tenu de payer le loyer et les charges dans un mois, sous peine de nullité.": LATIN,
    "El arrendatario está obligado al pago de la renta en los plazos de este contrato.": LATIN,
    "De huurder is verplicht het huis te onderhouden en de huur van een maand te betalen.": LATIN,
    "Vuokralainen on velvollinen maksamaan vuokran sopimuksen mukaisesti eräpäivään mennessä.": LATIN,
    "Bên thuê có nghĩa vụ trả tiền thuê nhà đúng thời hạn theo hợp đồng.": LATIN,
    "lung lesions, kinase inhibitor, T-cell receptor, myocardial infarction, gene expression": UNKNOWN,
    "": UNKNOWN,
    "承租人应当按照合同约定的期限支付租金。": CJK,
    "임차인은 계약에서 정한 기간에 차임을 지급하여야 한다.": CJK,
    "Арендатор обязан своевременно вносить плату за пользование имуществом.": OTHER,
    "يلتزم المستأجر بدفع الأجرة في المواعيد المتفق عليها": OTHER,
}
ANALYZERS = {ENGLISH: "english", UNKNOWN: "english", LATIN: "standard", OTHER: "standard", CJK: "cjk"}


@pytest.mark.parametrize("text", TEXTS)
def test_language_and_analyzer(text):
    assert recognize_language([text]) == TEXTS[text]
    assert choose_analyzer([text]) == ANALYZERS[TEXTS[text]]


def test_a_few_foreign_texts_do_not_decide():
    english, german = list(TEXTS)[:2]
    assert recognize_language([english] * 9 + [german]) == ENGLISH
