/*
 * Prints what Lucene makes of texts and which passages it finds: the reference of tests/test_lucene_parity.py.
 *
 * java -cp $(echo /usr/share/java/lucene-{core,analyzers-common}-8*.jar | tr ' ' ':') \
 *     tests/lucene/LuceneReference.java english|standard|cjk passages.txt queries.txt
 *
 * Both files hold one text a line. One line comes out for each query: its terms, a tab, and the ten best passages as
 * number:score. The jars are those of Debian's liblucene8-java (Lucene 8.7).
 */

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.cjk.CJKAnalyzer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.store.ByteBuffersDirectory;

public class LuceneReference {
    public static void main(String[] args) throws Exception {
        Analyzer analyzer = switch (args[0]) {
            case "english" -> new EnglishAnalyzer();
            case "standard" -> new StandardAnalyzer();
            case "cjk" -> new CJKAnalyzer();
            default -> throw new IllegalArgumentException(args[0]);
        };
        ByteBuffersDirectory directory = new ByteBuffersDirectory();
        try (IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(analyzer))) {
            for (String passage : Files.readAllLines(Path.of(args[1]))) {
                Document document = new Document();
                document.add(new TextField("text", passage, Field.Store.NO));
                writer.addDocument(document);
            }
            writer.forceMerge(1); // numbers of documents are numbers of lines
        }
        IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(directory));
        searcher.setSimilarity(new BM25Similarity(1.2f, 0.75f));
        BooleanQuery.setMaxClauseCount(1 << 16);
        for (String text : Files.readAllLines(Path.of(args[2]))) {
            List<String> terms = analyze(analyzer, text);
            BooleanQuery.Builder query = new BooleanQuery.Builder();
            for (String term : terms) {
                query.add(new TermQuery(new Term("text", term)), BooleanClause.Occur.SHOULD);
            }
            StringBuilder line = new StringBuilder(String.join(" ", terms)).append('\t');
            for (ScoreDoc hit : searcher.search(query.build(), 10).scoreDocs) {
                line.append(hit.doc).append(':').append(hit.score).append(' ');
            }
            System.out.println(line.toString().stripTrailing());
        }
    }

    static List<String> analyze(Analyzer analyzer, String text) throws Exception {
        List<String> terms = new ArrayList<>();
        try (TokenStream stream = analyzer.tokenStream("text", text)) {
            CharTermAttribute term = stream.addAttribute(CharTermAttribute.class);
            stream.reset();
            while (stream.incrementToken()) {
                terms.add(term.toString());
            }
            stream.end();
        }
        return terms;
    }
}
