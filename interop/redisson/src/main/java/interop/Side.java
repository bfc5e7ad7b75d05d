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
 * The Java side: reads {@code ACTOR COMMAND ARGUMENTS...} from its standard input, and answers each
 * with {@code ACTOR START END ANSWER}, both times in microseconds since 1970. Every actor is a thread
 * of its own, as Redisson's locks belong to threads; an actor carries out one command after another,
 * and different actors do not wait for each other. Ends with its standard input.
 *
 * <p>Usage: {@code Side REDIS_URL WATCHDOG_MILLIS}
 */
public final class Side {
    private final Actions actions;
    private final Map<String, BlockingQueue<String[]>> actors = new HashMap<>();

    private Side(RedissonClient client) {
        actions = new Actions(client);
    }

    public static void main(String[] args) throws Exception {
        long begun = micros();
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        config.useSingleServer().setAddress(args[0]);
        Side side = new Side(Redisson.create(config));
        say("side", begun, "ok " + Runtime.version().feature());
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split("\\s+");
            if (words.length >= 2) {
                side.actors.computeIfAbsent(words[0], side::start).put(words);
            }
        }
        // At once, as a crash would: nothing that is held here is given back.
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
            say(actor, begun, answer);
        }
    }

    private static synchronized void say(String actor, long begun, String answer) {
        System.out.println(actor + " " + begun + " " + micros() + " " + answer);
        System.out.flush();
    }

    private static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
    }
}
