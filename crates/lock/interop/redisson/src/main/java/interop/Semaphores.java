package interop;

import java.lang.reflect.InvocationTargetException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** The commands of the two kinds of semaphore. What older versions do not have is called by reflection. */
final class Semaphores {
    private final RedissonClient client;

    /** The ids of the leased permits that an actor holds, those acquired together as one, by actor and name. */
    private final Map<String, Deque<List<String>>> held = new ConcurrentHashMap<>();

    Semaphores(RedissonClient client) {
        this.client = client;
    }

    String plain(String[] words) throws Exception {
        RSemaphore semaphore = client.getSemaphore(words[3]);
        switch (words[1]) {
            case "permits":
                return Actions.yesOrNo(semaphore.trySetPermits(number(words, 4)));
            case "lock":
                semaphore.acquire(permits(words));
                return "ok";
            case "try":
                return Actions.yesOrNo(
                        semaphore.tryAcquire(permits(words), number(words, 4), TimeUnit.MILLISECONDS));
            case "unlock":
                semaphore.release(number(words, 4, 1));
                return "ok";
            case "add-if-exists":
                return addIfExists(semaphore, number(words, 4));
            case "available":
                return "ok " + semaphore.availablePermits();
            default:
                return "unsupported";
        }
    }

    private static String addIfExists(RSemaphore semaphore, int permits) throws Exception {
        try {
            // Since 4.3.
            Object done = RSemaphore.class.getMethod("releaseIfExists", int.class).invoke(semaphore, permits);
            return Actions.yesOrNo((Boolean) done);
        } catch (NoSuchMethodException old) {
            return "unsupported";
        }
    }

    String leased(String[] words) throws Exception {
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(words[3]);
        Deque<List<String>> holds = held.computeIfAbsent(words[0] + " " + words[3], key -> new ArrayDeque<>());
        switch (words[1]) {
            case "permits":
                return Actions.yesOrNo(semaphore.trySetPermits(number(words, 4)));
            case "lock":
                if (permits(words) > 1) {
                    return acquireMany(semaphore, holds, permits(words), number(words, 4));
                }
                holds.push(List.of(
                        words.length > 4
                                ? semaphore.acquire(number(words, 4), TimeUnit.MILLISECONDS)
                                : semaphore.acquire()));
                return "ok";
            case "try":
                String id = semaphore.tryAcquire(number(words, 4), TimeUnit.MILLISECONDS);
                if (id != null) {
                    holds.push(List.of(id));
                }
                return Actions.yesOrNo(id != null);
            case "unlock":
                release(semaphore, holds.pop());
                return "ok";
            case "extend":
                boolean done = true;
                for (String permit : holds.peek()) {
                    done &= semaphore.updateLeaseTime(permit, number(words, 4), TimeUnit.MILLISECONDS);
                }
                return Actions.yesOrNo(done);
            case "available":
                return "ok " + semaphore.availablePermits();
            default:
                return "unsupported";
        }
    }

    @SuppressWarnings("unchecked")
    private static String acquireMany(
            RPermitExpirableSemaphore semaphore, Deque<List<String>> holds, int permits, long lease)
            throws Exception {
        try {
            Object ids = RPermitExpirableSemaphore.class
                    .getMethod("acquire", int.class, long.class, TimeUnit.class)
                    .invoke(semaphore, permits, lease, TimeUnit.MILLISECONDS);
            holds.push((List<String>) ids);
            return "ok";
        } catch (NoSuchMethodException old) {
            return "unsupported";
        } catch (InvocationTargetException failure) {
            throw new IllegalStateException(failure.getCause());
        }
    }

    private static void release(RPermitExpirableSemaphore semaphore, List<String> ids) throws Exception {
        if (ids.size() == 1) {
            semaphore.release(ids.get(0));
            return;
        }
        RPermitExpirableSemaphore.class.getMethod("release", List.class).invoke(semaphore, ids);
    }

    /** How many permits: the word after the lease or the time limit. */
    private static int permits(String[] words) {
        return number(words, 5, 1);
    }

    private static int number(String[] words, int index) {
        return Integer.parseInt(words[index]);
    }

    private static int number(String[] words, int index, int otherwise) {
        return words.length > index ? number(words, index) : otherwise;
    }
}
