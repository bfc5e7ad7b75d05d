-- The vouchers of `seckill seed`: an ordinary one, and a flash sale of 100 that is on for 30 days. An instance sets its counter.
INSERT INTO tb_voucher (shop_id, title, sub_title, rules, pay_value, actual_value, type) VALUES
    (1, '50 元代金券', '周一至周日均可使用', '全场通用；无需预约；不兑现、不找零', 4750, 5000, 0),
    (1, '100 元秒杀代金券', '周一至周日均可使用', '全场通用；无需预约；不兑现、不找零', 8000, 10000, 1);
INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time)
    SELECT MAX(id), 100, 100, NOW() - INTERVAL 1 HOUR, NOW() + INTERVAL 30 DAY
    FROM tb_voucher WHERE type = 1
