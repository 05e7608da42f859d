/*
 * Measures Lucene itself, for servers.py: java -cp JARS LuceneRates.java passages.txt queries.txt FOLDER 1 4 16
 *
 * Both files hold one text a line. Prints JSON: the build, the size of the index, the rates of 1, 4 and 16 threads, and
 * the memory of the process.
 */

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.store.FSDirectory;
import org.apache.lucene.util.QueryBuilder;

public class LuceneRates {
    static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] args) throws Exception {
        List<String> passages = Files.readAllLines(Path.of(args[0])), queries = Files.readAllLines(Path.of(args[1]));
        Analyzer analyzer = new EnglishAnalyzer();
        FSDirectory directory = FSDirectory.open(Path.of(args[2]));
        double[] start = read();
        try (IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(analyzer))) {
            for (String passage : passages) {
                Document document = new Document();
                document.add(new TextField("text", passage, Field.Store.NO));
                writer.addDocument(document);
            }
            writer.forceMerge(1);
        }
        double[] built = read();
        long size = 0;
        for (String file : directory.listAll()) {
            size += directory.fileLength(file);
        }
        IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(directory));
        for (int i = 0; i < 3; i++) {
            search(searcher, analyzer, queries); // compiles what runs often
        }
        String rates = "";
        for (int i = 3; i < args.length; i++) {
            int clients = Integer.parseInt(args[i]);
            double[] before = read();
            var pool = Executors.newFixedThreadPool(clients);
            List<Callable<Void>> parts = IntStream.range(0, clients).mapToObj(number -> (Callable<Void>) () -> {
                List<String> part = IntStream.range(0, queries.size()).filter(row -> row % clients == number)
                        .mapToObj(queries::get).collect(Collectors.toList());
                search(searcher, analyzer, part);
                return null;
            }).collect(Collectors.toList());
            for (var part : pool.invokeAll(parts)) {
                part.get();
            }
            pool.shutdown();
            double[] after = read();
            rates += String.format("%s\"%d\": {\"queries_per_second\": %f, \"queries_per_cpu_second\": %f}",
                    rates.isEmpty() ? "" : ", ", clients, queries.size() / (after[0] - before[0]),
                    queries.size() / (after[1] - before[1]));
        }
        System.out.printf("{\"passages\": %d, \"passages_per_second\": %f, \"build_cpu_seconds\": %f, "
                + "\"index_megabytes\": %f, \"resident_megabytes\": %f, \"clients\": {%s}}%n", passages.size(),
                passages.size() / (built[0] - start[0]), built[1] - start[1], size / 1e6, readMemory(), rates);
    }

    /** Returns seconds of the clock, and of the processor over all threads. */
    static double[] read() {
        return new double[] {System.nanoTime() / 1e9, SYSTEM.getProcessCpuTime() / 1e9};
    }

    /** Returns the resident memory of this process in MB, as Linux counts it. */
    static double readMemory() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Double.parseDouble(line.replaceAll("\\D", "")) * 1024 / 1e6;
            }
        }
        return Double.NaN;
    }

    static void search(IndexSearcher searcher, Analyzer analyzer, List<String> queries) throws Exception {
        for (String text : queries) {
            Query query = new QueryBuilder(analyzer).createBooleanQuery("text", text);
            searcher.search(query, 10);
        }
    }
}
