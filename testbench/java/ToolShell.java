/* Runs Apache Kafka's command line tools one after the other in one JVM, which starts once.
 *
 * A line of standard input is the main class of a tool and its words, separated by tabs. Says what the tool prints on
 * standard output and error, and then a line: the sign U+0004, the exit code.
 */

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.utils.Exit;

public final class ToolShell {
    /* A tool that exits waits for ever instead: an exception in place of the exit would be caught by some tools. */
    private static final class Tool extends Thread {
        private final CompletableFuture<Integer> code = new CompletableFuture<>();
        private final String name;
        private final String[] words;

        Tool(String name, String[] words) {
            this.name = name;
            this.words = words;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) words);
                code.complete(0);
            } catch (InvocationTargetException error) {
                error.getCause().printStackTrace();
                code.complete(1);
            } catch (ReflectiveOperationException error) {
                error.printStackTrace();
                code.complete(1);
            }
        }
    }

    private static void exit(int code) {
        if (Thread.currentThread() instanceof Tool tool) tool.code.complete(code);
        new CompletableFuture<Void>().join();
    }

    public static void main(String[] words) throws IOException {
        PrintStream output = System.out;
        System.setErr(output);
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            Tool tool = new Tool(fields[0], Arrays.copyOfRange(fields, 1, fields.length));
            tool.start();
            int code = tool.code.join();
            output.println();
            output.println("\u0004" + code);
            output.flush();
        }
    }
}
