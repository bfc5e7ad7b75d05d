package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The Java client process: reads {@code ACTOR COMMAND ARGUMENTS...} from its standard input, and
 * answers each with {@code ACTOR START END ANSWER}, both times in microseconds since 1970. Every actor
 * is a thread, as Redisson's locks belong to threads; it runs one command after another, independently
 * of other actors. Ends with its standard input.
 *
 * <p>Usage: {@code RedissonClientProcess REDIS_URL WATCHDOG_MILLIS [PREFIX]}. With a prefix, every name
 * is mapped: the key of {@code a} is {@code PREFIXa}.
 */
public final class RedissonClientProcess {
    private final Actions actions;
    private final Map<String, BlockingQueue<String[]>> actors = new HashMap<>();

    private RedissonClientProcess(RedissonClient client) {
        actions = new Actions(client);
    }

    public static void main(String[] args) throws Exception {
        long begun = micros();
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        if (args.length > 2) {
            PrefixMapper.install(config.useSingleServer(), args[2]);
        }
        config.useSingleServer().setAddress(args[0]);
        RedissonClientProcess process = new RedissonClientProcess(Redisson.create(config));
        reply("client", begun, "ok " + Runtime.version().feature());
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split("\\s+");
            if (words.length >= 2) {
                process.actors.computeIfAbsent(words[0], process::start).put(words);
            }
        }
        // At once, as in a crash: nothing is released.
        Runtime.getRuntime().halt(0);
    }

    private BlockingQueue<String[]> start(String actor) {
        BlockingQueue<String[]> queue = new LinkedBlockingQueue<>();
        Thread thread = new Thread(() -> act(actor, queue), actor);
        thread.setDaemon(true);
        thread.start();
        return queue;
    }

    private void act(String actor, BlockingQueue<String[]> queue) {
        while (true) {
            String[] words;
            try {
                words = queue.take();
            } catch (InterruptedException end) {
                return;
            }
            long begun = micros();
            String answer;
            try {
                answer = actions.carryOut(words);
            } catch (Exception failure) {
                answer = "error " + failure.toString().replaceAll("\\s+", " ");
            }
            reply(actor, begun, answer);
        }
    }

    private static synchronized void reply(String actor, long begun, String answer) {
        System.out.println(actor + " " + begun + " " + micros() + " " + answer);
        System.out.flush();
    }

    private static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
