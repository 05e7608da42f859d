#!/usr/bin/env bash
# Writes the golden files of tests/datastore/test_lucene_parity.py again; needs a JDK and Debian's liblucene8-java.
set -euo pipefail
cd "$(dirname "$0")"
jars=$(echo /usr/share/java/lucene-{core,analyzers-common}-8*.jar | tr ' ' ':')
english=$(mktemp)
zcat ../../../examples/quickstart_data/corpus.txt.gz > "$english"
refer() {
    java -Dfile.encoding=UTF-8 -Dstdout.encoding=UTF-8 -cp "$jars" LuceneReference.java "$1" "$2" "$3" > "$4"
}
refer english "$english" english_queries.txt english.tsv
refer standard "$english" english_queries.txt standard.tsv
refer cjk chinese_passages.txt chinese_queries.txt chinese.tsv
for analyzer in english standard cjk; do
    refer "$analyzer" chinese_passages.txt odd_texts.txt "odd_$analyzer.tsv"
done
rm "$english"
